//! Calls of the Rust client for one lock, with a broker and with the fake.

#![expect(
    clippy::disallowed_methods,
    reason = "tests run tasks beside the product, which ends them with its own tracker"
)]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use leasehold::{Error, LostReason, RunError, fake};
use leasehold_tests::{
    clock::boottime,
    sdk::broker::{TestBroker, acquire_and_release},
    with_both_brokers,
};
use tokio::{sync::oneshot, time::timeout};

const TTL: Duration = Duration::from_secs(2);
const TIME_LIMIT: Duration = Duration::from_secs(5);

with_both_brokers! {
    one_holds_and_the_next_has_a_larger_token
    a_timed_out_wait_names_the_holder
    a_waiter_receives_its_queue_position_and_is_granted_in_order
    a_dropped_guard_gives_its_lock_back
    a_guard_can_be_dropped_outside_of_a_runtime
    a_dropped_call_leaves_the_line
    work_is_done_under_the_lock
    work_can_fail_by_itself
    a_shutdown_releases_all_leases
    attempts_are_counted
    a_leader_is_elected_and_observed
    a_cancellation_token_ends_with_the_guard
}

async fn one_holds_and_the_next_has_a_larger_token(broker: TestBroker) {
    let (one, other) = (broker.client("one").await, broker.client("other").await);
    let guard = one.lock("a").ttl(TTL).acquire().await.expect("it is free");
    assert!(guard.is_valid() && guard.lost_reason().is_none() && guard.check().is_ok());
    assert!(guard.fencing_token() > 0 && !guard.lease_id().is_empty());
    assert_eq!(guard.locks(), ["default/a"]);
    assert_eq!(guard.fencing_token_of("a"), Some(guard.fencing_token()));
    assert_eq!(guard.fencing_token_of("b"), None);
    let taken = other.lock("a").try_acquire().await.expect("an answer");
    assert!(taken.is_none(), "two have it");
    let token = guard.fencing_token();
    let held = guard.held();
    guard.release().await.expect("it was held");
    assert!(!held.is_valid());
    assert_eq!(held.lost_reason(), Some(LostReason::Released));
    let taken = other.lock("a").try_acquire().await.expect("an answer");
    assert!(taken.expect("it is free").fencing_token() > token);
}

async fn a_timed_out_wait_names_the_holder(broker: TestBroker) {
    let (one, other) = (broker.client("one").await, broker.client("other").await);
    let guard = one.lock("a").reason("to be there").acquire().await;
    let guard = guard.expect("it is free");
    let started_at = boottime();
    let wait = Duration::from_millis(300);
    let error = other.lock("a").wait(wait).acquire().await;
    let error = error.expect_err("it is held");
    assert!(boottime() - started_at >= wait);
    assert!(matches!(error, Error::WaitTimeout(_)), "{error:?}");
    let [holder] = error.holders() else {
        panic!("one holds it: {error:?}")
    };
    assert_eq!(
        (holder.owner.as_str(), holder.reason.as_str()),
        ("one", "to be there")
    );
    assert_eq!(holder.lease_id, guard.lease_id());
    assert!(error.to_string().contains("one (to be there)"), "{error}");
}

async fn a_waiter_receives_its_queue_position_and_is_granted_in_order(broker: TestBroker) {
    let (one, other) = (broker.client("one").await, broker.client("other").await);
    let guard = one.lock("a").acquire().await.expect("it is free");
    let first = tokio::spawn(one.lock("a").acquire());
    broker.wait_for_queue_length("a", 1).await;
    let (sender, receiver) = oneshot::channel();
    let sender = Mutex::new(Some(sender));
    let second = other.lock("a").on_queue(move |place| {
        if let Some(sender) = sender.lock().expect("no panic").take() {
            sender
                .send((place.position, place.queue_length))
                .expect("it is waited for");
        }
    });
    let second = tokio::spawn(second.acquire());
    let place = timeout(TIME_LIMIT, receiver)
        .await
        .expect("notified in time");
    assert_eq!(place.expect("notified"), (2, 2));
    guard.release().await.expect("it was held");
    let first = first.await.expect("no panic").expect("its turn");
    assert!(!second.is_finished());
    let token = first.fencing_token();
    drop(first);
    let second = second.await.expect("no panic").expect("its turn");
    assert!(second.fencing_token() > token);
}

async fn a_dropped_guard_gives_its_lock_back(broker: TestBroker) {
    let (one, other) = (broker.client("one").await, broker.client("other").await);
    drop(
        one.lock("a")
            .ttl(TTL * 10)
            .acquire()
            .await
            .expect("it is free"),
    );
    acquire_and_release(&other, "a").await;
}

async fn a_guard_can_be_dropped_outside_of_a_runtime(broker: TestBroker) {
    let (one, other) = (broker.client("one").await, broker.client("other").await);
    let guard = one
        .lock("a")
        .ttl(TTL * 10)
        .acquire()
        .await
        .expect("it is free");
    let dropped = std::thread::spawn(move || drop((guard, one)));
    dropped.join().expect("no panic");
    acquire_and_release(&other, "a").await;
}

async fn a_dropped_call_leaves_the_line(broker: TestBroker) {
    let (one, other) = (broker.client("one").await, broker.client("other").await);
    let guard = one.lock("a").acquire().await.expect("it is free");
    let gone = tokio::spawn(other.lock("a").acquire());
    broker.wait_for_queue_length("a", 1).await;
    gone.abort();
    broker.wait_for_queue_length("a", 0).await;
    drop(guard);
    acquire_and_release(&other, "a").await;
}

async fn work_is_done_under_the_lock(broker: TestBroker) {
    let (one, other) = (broker.client("one").await, broker.client("other").await);
    let done = one.lock("a").run(|held| async move {
        let taken = other.lock("a").try_acquire().await.expect("an answer");
        assert!(taken.is_none() && held.is_valid());
        (held.fencing_token(), other)
    });
    let (token, other) = done.await.expect("done");
    let next = other.lock("a").try_acquire().await.expect("an answer");
    assert!(next.expect("released").fencing_token() > token);
}

async fn work_can_fail_by_itself(broker: TestBroker) {
    let client = broker.client("one").await;
    let failed = client
        .lock("a")
        .run(|_| async { Err::<(), _>("out of paper") });
    assert_eq!(
        failed.await.expect("the lock was held"),
        Err("out of paper")
    );
    acquire_and_release(&client, "a").await;
}

async fn a_shutdown_releases_all_leases(broker: TestBroker) {
    let (one, other) = (broker.client("one").await, broker.client("other").await);
    let guard = one
        .lock("a")
        .ttl(TTL * 10)
        .acquire()
        .await
        .expect("it is free");
    let waits = tokio::spawn(one.lock("a").acquire());
    broker.wait_for_queue_length("a", 1).await;
    let again = one.clone();
    one.shutdown().await;
    let waits = waits.await.expect("no panic");
    assert!(matches!(waits, Err(Error::Closed)), "{waits:?}");
    assert_eq!(guard.lost().await, LostReason::Closed);
    let closed = again.lock("b").acquire().await;
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
    acquire_and_release(&other, "a").await;
}

async fn attempts_are_counted(broker: TestBroker) {
    let (one, other) = (broker.client("one").await, broker.client("other").await);
    let guard = one.lock("a").acquire().await.expect("it is free");
    let (started_at, every) = (boottime(), Duration::from_millis(100));
    let none = other.lock("a").attempts(4, every).try_acquire().await;
    assert!(none.expect("an answer").is_none());
    let took = boottime() - started_at;
    assert!(took >= every * 3 * 3 / 4 && took < every * 12, "{took:?}");
    let late = other.lock("a").attempts(1_000, every / 10).try_acquire();
    let late = tokio::spawn(late);
    drop(guard);
    let late = late.await.expect("no panic").expect("an answer");
    assert!(late.is_some(), "it is free");
}

async fn a_leader_is_elected_and_observed(broker: TestBroker) {
    let (one, other) = (broker.client("one").await, broker.client("other").await);
    let mut observer = broker.client("observer").await.elect("job").observe();
    let leader = observer.next().await.expect("a look");
    assert!(leader.is_none(), "{leader:?}");
    let leads = one.elect("job").reason("first").campaign().await;
    let leads = leads.expect("no other caller leads");
    let leader = observer.next().await.expect("a look").expect("a leader");
    assert_eq!(
        (leader.owner.as_str(), leader.reason.as_str()),
        ("one", "first")
    );
    assert_eq!(leader.fencing_token, leads.fencing_token());
    let next = tokio::spawn(other.elect("job").campaign());
    broker.wait_for_queue_length("job", 1).await;
    leads.release().await.expect("it led");
    let next = next.await.expect("no panic").expect("its turn");
    let leader = observer.next().await.expect("a look").expect("a leader");
    assert_eq!(leader.owner, "other");
    assert_eq!(leader.fencing_token, next.fencing_token());
}

async fn a_cancellation_token_ends_with_the_guard(broker: TestBroker) {
    let client = broker.client("one").await;
    let guard = client.lock("a").acquire().await.expect("it is free");
    let (token, other) = (guard.cancellation_token(), guard.cancellation_token());
    other.cancel();
    assert!(
        !token.is_cancelled() && guard.is_valid(),
        "a view has no power"
    );
    drop(guard);
    assert!(token.is_cancelled());
}

#[tokio::test]
async fn work_is_dropped_when_the_lock_is_lost() {
    let broker = fake::Broker::new();
    let client = broker.client("one").expect("a client");
    let alive = Arc::new(());
    let (started_at, has_begun) = oneshot::channel();
    let work = tokio::spawn(client.lock("a").run({
        let alive = Arc::clone(&alive);
        move |_| async move {
            started_at.send(()).expect("it is waited for");
            std::future::pending::<()>().await;
            drop(alive);
        }
    }));
    has_begun.await.expect("the work begins");
    assert_eq!(broker.lose("a"), 1);
    let lost = work.await.expect("no panic");
    assert!(
        matches!(lost, Err(RunError::Lost(LostReason::StoreLost))),
        "{lost:?}"
    );
    assert_eq!(Arc::strong_count(&alive), 1, "the work is dropped");
}

#[tokio::test]
async fn a_lock_that_the_fake_loses_is_granted_to_the_next_waiter() {
    let broker = fake::Broker::new();
    let (one, other) = (broker.client("one"), broker.client("other"));
    let (one, other) = (one.expect("a client"), other.expect("a client"));
    let lost = one.lock("a").acquire().await.expect("it is free");
    let next = tokio::spawn(other.lock("a").acquire());
    while broker.queue_length("a") == 0 {
        tokio::task::yield_now().await;
    }
    broker.lose("a");
    let next = next.await.expect("no panic").expect("its turn");
    assert!(!lost.is_valid() && next.is_valid());
    assert_eq!(lost.check(), Err(LostReason::StoreLost));
    let released = lost.release().await;
    assert!(released.is_err(), "overlap may have happened");
    assert_eq!(
        broker.holder_count("a"),
        1,
        "a lost guard gives nothing back"
    );
}
