//! Modes of locks, several locks, and re-entry with the Rust client, with a broker and with the
//! fake.

use leasehold::{Error, Target};
use leasehold_tests::{
    sdk::broker::{TestBroker, acquire_and_release},
    with_both_brokers,
};

with_both_brokers! {
    readers_share_and_a_writer_waits_for_them
    permits_add_up_to_the_limit
    several_locks_are_taken_all_or_none
    a_lease_is_entered_and_left_again
    a_lock_is_added_to_a_lease
    an_upgrade_is_denied
    another_limit_is_refused
    a_set_limit_overrides_that_of_calls
    one_client_holds_more_than_a_stream_can
}

async fn readers_share_and_a_writer_waits_for_them(broker: TestBroker) {
    let client = broker.client("one").await;
    let one = client.lock("a").shared().acquire().await.expect("free");
    let other = client.lock("a").shared().acquire().await.expect("shared");
    assert!(
        client
            .lock("a")
            .try_acquire()
            .await
            .expect("an answer")
            .is_none()
    );
    drop((one, other));
    acquire_and_release(&client, "a").await;
}

async fn permits_add_up_to_the_limit(broker: TestBroker) {
    let client = broker.client("one").await;
    let take = |permits| client.lock("a").permits(permits, 5).try_acquire();
    let three = take(3).await.expect("an answer").expect("3 of 5");
    let two = take(2).await.expect("an answer").expect("5 of 5");
    assert!(take(1).await.expect("an answer").is_none(), "6 of 5");
    three.release().await.expect("it was held");
    drop((
        take(3).await.expect("an answer").expect("5 of 5 again"),
        two,
    ));
}

async fn several_locks_are_taken_all_or_none(broker: TestBroker) {
    let (one, other) = (broker.client("one").await, broker.client("other").await);
    let b = other.lock("b").acquire().await.expect("it is free");
    let all = ["a", "b", "c"];
    assert!(
        one.lock_all(all)
            .try_acquire()
            .await
            .expect("an answer")
            .is_none()
    );
    let a = other.lock("a").try_acquire().await.expect("an answer");
    assert!(a.is_some(), "a part was kept");
    drop((a, b));
    let guard = one.lock_all(all).acquire().await.expect("all are free");
    let tokens = all.map(|lock| guard.fencing_token_of(lock));
    assert!(tokens.iter().all(Option::is_some), "{tokens:?}");
    assert!(
        other
            .lock("c")
            .try_acquire()
            .await
            .expect("an answer")
            .is_none()
    );
    guard.release().await.expect("it was held");
    let mixed = [Target::new("c").shared(), Target::from("a")];
    let guard = other.lock_all(mixed).acquire().await;
    assert!(guard.expect("both are free").is_valid());
}

async fn a_lease_is_entered_and_left_again(broker: TestBroker) {
    let (one, other) = (broker.client("one").await, broker.client("other").await);
    let outer = one.lock("a").acquire().await.expect("it is free");
    let inner = one
        .lock("a")
        .under(&outer)
        .acquire()
        .await
        .expect("it is ours");
    assert_eq!(inner.fencing_token(), outer.fencing_token());
    assert_eq!(inner.lease_id(), outer.lease_id());
    inner.release().await.expect("it was held");
    assert!(outer.is_valid());
    assert!(
        other
            .lock("a")
            .try_acquire()
            .await
            .expect("an answer")
            .is_none()
    );
    let inner = one
        .lock("a")
        .under(&outer)
        .acquire()
        .await
        .expect("it is ours");
    outer.release().await.expect("it was held");
    assert!(inner.is_valid(), "each guard releases what it took");
    assert!(
        other
            .lock("a")
            .try_acquire()
            .await
            .expect("an answer")
            .is_none()
    );
    inner.release().await.expect("it was held");
    acquire_and_release(&other, "a").await;
}

async fn a_lock_is_added_to_a_lease(broker: TestBroker) {
    let (one, other) = (broker.client("one").await, broker.client("other").await);
    let a = one.lock("a").acquire().await.expect("it is free");
    let b = one.lock("b").under(&a).acquire().await.expect("it is free");
    assert_eq!(b.lease_id(), a.lease_id());
    assert_eq!(b.locks(), ["default/b"]);
    b.release().await.expect("it was held");
    acquire_and_release(&other, "b").await;
    assert!(
        other
            .lock("a")
            .try_acquire()
            .await
            .expect("an answer")
            .is_none()
    );
    a.release().await.expect("it was held");
    acquire_and_release(&other, "a").await;
}

async fn an_upgrade_is_denied(broker: TestBroker) {
    let client = broker.client("one").await;
    let shared = client.lock("a").shared().acquire().await.expect("free");
    let denied = client.lock("a").under(&shared).acquire().await;
    assert!(matches!(denied, Err(Error::UpgradeDenied(_))), "{denied:?}");
    assert!(shared.is_valid());
}

async fn another_limit_is_refused(broker: TestBroker) {
    let client = broker.client("one").await;
    let _held = client
        .lock("a")
        .permits(1, 5)
        .acquire()
        .await
        .expect("free");
    let refused = client.lock("a").permits(1, 6).acquire().await;
    assert!(
        matches!(refused, Err(Error::LimitMismatch(_))),
        "{refused:?}"
    );
    let refused = client.lock("a").shared().try_acquire().await;
    assert!(
        matches!(refused, Err(Error::LimitMismatch(_))),
        "{refused:?}"
    );
}

async fn one_client_holds_more_than_a_stream_can(broker: TestBroker) {
    let client = broker.client("one").await;
    let locks = (0..1_100).map(|lock| client.lock(format!("lock-{lock}")).acquire());
    let guards = futures::future::join_all(locks).await;
    let guards: Result<Vec<_>, _> = guards.into_iter().collect();
    let guards = guards.expect("a second stream for those that the first has no room for");
    assert!(guards.iter().all(|guard| guard.is_valid()));
    drop(guards);
    acquire_and_release(&client, "lock-1099").await;
}

async fn a_set_limit_overrides_that_of_calls(broker: TestBroker) {
    let client = broker.client("one").await;
    let take = |permits| client.lock("a").permits(permits, 9).try_acquire();
    assert_eq!(client.set_limit("a", Some(2)).await.expect("idle"), None);
    let two = take(2).await.expect("an answer").expect("2 of 2");
    assert!(take(1).await.expect("an answer").is_none(), "3 of 2");
    let larger = take(3).await.expect_err("3 of 2");
    assert!(matches!(larger, Error::LimitMismatch(_)), "{larger:?}");
    assert_eq!(
        client.set_limit("a", Some(3)).await.expect("raised"),
        Some(2)
    );
    let one = take(1).await.expect("an answer").expect("3 of 3");
    assert_eq!(client.set_limit("a", None).await.expect("set"), Some(3));
    let other = take(1).await.expect_err("the limit in use is 3");
    assert!(matches!(other, Error::LimitMismatch(_)), "{other:?}");
    drop((one, two));
    acquire_and_release(&client, "a").await;
    let held = client.lock("a").acquire().await.expect("it is free");
    let mismatch = client.set_limit("a", Some(2)).await.expect_err("exclusive");
    assert!(matches!(mismatch, Error::LimitMismatch(_)), "{mismatch:?}");
    drop(held);
    for limit in [0, 1_001] {
        let invalid = client.set_limit("a", Some(limit)).await;
        let is_invalid = matches!(invalid, Err(Error::Invalid(_)));
        assert!(is_invalid, "{limit}: {invalid:?}");
    }
}
