//! Known mistakes of lock services, each shown not to occur here.

use leasehold_server::{
    lock::{EXPIRED_MS, FencingToken, IDLE_RECORD_TTL_MS, expiry_ms},
    store::{Acquired, Cancelled, LeaseRejection},
};

use crate::store_fixture::{
    SLACK_MS, StoreFixture, TTL_MS, assert_remaining, at_most_one, lease_of, lock_key, new_attempt,
    released_before, released_now,
};

pub async fn t01_a_lease_of_another_lock_releases_nothing(store_fixture: &StoreFixture) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    let mut other = store_fixture.call();
    other.lock = lock_key("default", "another lock");
    let mut foreign = store_fixture.expect_granted(0, &other).await;
    foreign.lock = store_fixture.lock.clone();
    assert_eq!(
        store_fixture.release(0, &foreign).await,
        Err(LeaseRejection::NotFound)
    );
    store_fixture.expect_renewed(0, &lease).await;
}

pub async fn t02_a_late_release_leaves_the_next_holder_alone(store_fixture: &StoreFixture) {
    let first = store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture.expect_released(0, &first).await;
    let second = store_fixture.expect_granted(0, &store_fixture.call()).await;
    assert_eq!(store_fixture.release(0, &first).await, released_before(0));
    store_fixture.expect_renewed(0, &second).await;
}

pub async fn t02_an_old_token_of_the_same_lease_releases_nothing(store_fixture: &StoreFixture) {
    let call = store_fixture.call();
    let lease = store_fixture.expect_granted(0, &call).await;
    let mut old = lease.clone();
    old.fencing_token = FencingToken::new(lease.fencing_token.get() - 1).expect("a token");
    assert_eq!(
        store_fixture.release(0, &old).await,
        Err(LeaseRejection::NotFound)
    );
    assert_eq!(
        store_fixture.renew(0, &old).await,
        Err(LeaseRejection::NotFound)
    );
    store_fixture.expect_renewed(0, &lease).await;
}

pub async fn t03_renewal_never_creates_a_lock(store_fixture: &StoreFixture) {
    let call = store_fixture.call();
    let never_granted = lease_of(&call, FencingToken::new(1).expect("a token"));
    assert_eq!(
        store_fixture.renew(0, &never_granted).await,
        Err(LeaseRejection::NotFound)
    );
    assert_eq!(store_fixture.get().await, None);
}

pub async fn t03_renewal_past_the_expiry_is_refused_although_the_lock_is_free(
    store_fixture: &StoreFixture,
) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    assert_eq!(
        store_fixture.renew(0, &lease).await,
        Err(LeaseRejection::Expired)
    );
    assert_eq!(
        at_most_one(store_fixture.expect_state().await.holders),
        None
    );
}

pub async fn t03_renewal_never_extends_the_lease_of_another(store_fixture: &StoreFixture) {
    let old = store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    store_fixture.expect_granted(1, &store_fixture.call()).await;
    store_fixture.advance_ms(8_000).await;
    assert_eq!(
        store_fixture.renew(0, &old).await,
        Err(LeaseRejection::Expired)
    );
    let holder = at_most_one(store_fixture.expect_state().await.holders).expect("held");
    assert_remaining(holder.remaining_ms, expiry_ms(TTL_MS) - 8_000);
}

pub async fn t04_a_renewal_after_the_release_is_rejected_as_released(store_fixture: &StoreFixture) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture.expect_released(0, &lease).await;
    assert_eq!(
        store_fixture.renew(0, &lease).await,
        Err(LeaseRejection::Released)
    );
    assert_eq!(
        at_most_one(store_fixture.expect_state().await.holders),
        None
    );
}

pub async fn t04_renewal_and_release_at_once_leave_the_lock_free(store_fixture: &StoreFixture) {
    for _ in 0..10 {
        let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
        let (_, released) = tokio::join!(
            store_fixture.renew(1, &lease),
            store_fixture.release(0, &lease)
        );
        assert_eq!(released, released_now(0));
        assert_eq!(
            at_most_one(store_fixture.expect_state().await.holders),
            None
        );
    }
}

pub async fn t05_a_cancelled_waiter_is_never_granted(store_fixture: &StoreFixture) {
    let lease = store_fixture.acquire_long(0).await;
    let (silent, next) = (store_fixture.waiting_call(), store_fixture.waiting_call());
    store_fixture.expect_queued(1, &silent).await;
    store_fixture.expect_queued(1, &next).await;
    assert_eq!(store_fixture.cancel(1, &silent).await, Cancelled::Dequeued);
    store_fixture.expect_released(0, &lease).await;
    store_fixture.claim_next_hand_off(1, &next).await;
}

pub async fn t05_an_undelivered_grant_goes_to_the_next_waiter(store_fixture: &StoreFixture) {
    let lease = store_fixture.acquire_long(0).await;
    let (silent, next) = (store_fixture.waiting_call(), store_fixture.waiting_call());
    store_fixture.expect_queued(1, &silent).await;
    store_fixture.expect_queued(1, &next).await;
    store_fixture.expect_released(0, &lease).await;
    store_fixture.next_hand_off(1, &silent).await;
    assert_eq!(store_fixture.cancel(1, &silent).await, Cancelled::Freed);
    store_fixture.claim_next_hand_off(1, &next).await;
}

pub async fn t07_a_repeat_after_a_lost_reply_gets_the_same_grant(store_fixture: &StoreFixture) {
    let call = store_fixture.call();
    let first = store_fixture.expect_granted(0, &call).await;
    assert_eq!(
        store_fixture.expect_granted(0, &new_attempt(&call)).await,
        first
    );
    assert_eq!(store_fixture.release(0, &first).await, released_now(0));
    assert_eq!(
        at_most_one(store_fixture.expect_state().await.holders),
        None
    );
}

pub async fn t08_a_waiter_past_its_time_is_not_granted_but_the_next_is(
    store_fixture: &StoreFixture,
) {
    let lease = store_fixture.acquire_long(0).await;
    let (late, next) = (
        store_fixture.waiting_call_for(2_000),
        store_fixture.waiting_call(),
    );
    store_fixture.expect_queued(1, &late).await;
    store_fixture.expect_queued(1, &next).await;
    store_fixture.advance_ms(expiry_ms(2_000)).await;
    store_fixture.expect_released(0, &lease).await;
    store_fixture.claim_next_hand_off(1, &next).await;
    assert_eq!(store_fixture.expect_state().await.queue_length, 0);
}

pub async fn t09_waiters_of_a_dead_broker_do_not_stay_queued(store_fixture: &StoreFixture) {
    let lease = store_fixture.acquire_long(0).await;
    let (ghost, live) = (store_fixture.waiting_call(), store_fixture.waiting_call());
    store_fixture.expect_queued(1, &ghost).await;
    store_fixture.expect_queued(2, &live).await;
    store_fixture.advance_with_touches(13_500, &[2]).await;
    store_fixture.expect_released(0, &lease).await;
    store_fixture.claim_next_hand_off(2, &live).await;
    assert_eq!(store_fixture.expect_state().await.queue_length, 0);
}

pub async fn t10_waiters_of_a_live_broker_are_never_purged(store_fixture: &StoreFixture) {
    let holder = store_fixture.call();
    let lease = store_fixture.expect_granted(0, &holder).await;
    let (patient, other) = (store_fixture.waiting_call(), store_fixture.waiting_call());
    store_fixture.expect_queued(1, &patient).await;
    store_fixture.expect_queued(2, &other).await;
    for _ in 0..6 {
        store_fixture.advance_with_touches(6_000, &[1, 2]).await;
        store_fixture.expect_renewed(0, &lease).await;
    }
    assert!(!store_fixture.touch(1).await.rejoin);
    store_fixture.expect_released(0, &lease).await;
    store_fixture.claim_next_hand_off(1, &patient).await;
}

pub async fn t10_a_broker_whose_waiters_were_dropped_is_notified(store_fixture: &StoreFixture) {
    let lease = store_fixture.acquire_long(0).await;
    let (dropped, live) = (store_fixture.waiting_call(), store_fixture.waiting_call());
    store_fixture.expect_queued(1, &dropped).await;
    store_fixture.expect_queued(2, &live).await;
    store_fixture.advance_with_touches(13_500, &[2]).await;
    store_fixture.expect_released(0, &lease).await;
    assert!(store_fixture.touch(1).await.rejoin);
    store_fixture.expect_queued(1, &new_attempt(&dropped)).await;
}

pub async fn t11_each_waiter_has_its_own_deadline(store_fixture: &StoreFixture) {
    let lease = store_fixture.acquire_long(0).await;
    let waits = [4_000, 40_000, 2_000].map(|wait_ms| store_fixture.waiting_call_for(wait_ms));
    for waiter in &waits {
        store_fixture.expect_queued(1, waiter).await;
    }
    store_fixture.advance_ms(4_001).await;
    let waiters = store_fixture.expect_state().await.waiters;
    assert_eq!(waiters.len(), 1);
    assert_eq!(waiters[0].owner, waits[1].owner);
    assert_remaining(waiters[0].remaining_ms, 40_000 - 4_001);
    store_fixture.advance_ms(expiry_ms(4_000) - 4_001).await;
    store_fixture.expect_released(0, &lease).await;
    store_fixture.claim_next_hand_off(1, &waits[1]).await;
}

pub async fn t12_all_times_are_those_of_the_store(store_fixture: &StoreFixture) {
    let Acquired::Granted(first) = store_fixture.acquire(0, &store_fixture.call()).await else {
        panic!("not granted");
    };
    store_fixture.advance_ms(100_000).await;
    let Acquired::Granted(second) = store_fixture.acquire(1, &store_fixture.call()).await else {
        panic!("the expiry is not judged by the store's clock");
    };
    let apart_ms = second.acquired_ms - first.acquired_ms;
    assert!(
        (100_000..100_000 + SLACK_MS).contains(&apart_ms),
        "{apart_ms}"
    );
    assert_eq!(second.fencing_token.get() / 1_000, second.acquired_ms);
}

pub async fn t13_a_newcomer_never_passes_a_waiter(store_fixture: &StoreFixture) {
    let lease = store_fixture.acquire_long(0).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &waiter).await;
    store_fixture.expect_released(0, &lease).await;
    assert!(store_fixture.next_hand_off(1, &waiter).await.is_provisional);
    let barging = store_fixture.acquire(2, &store_fixture.call()).await;
    assert!(matches!(barging, Acquired::Held(_)), "{barging:?}");
    let newcomer = store_fixture.waiting_call();
    store_fixture.expect_queued(0, &newcomer).await;
    let owners = store_fixture.expect_state().await.waiters;
    let owners: Vec<_> = owners.iter().map(|waiting| &waiting.owner).collect();
    assert_eq!(owners, [&waiter.owner, &newcomer.owner]);
}

pub async fn t13_the_next_waiter_gets_an_expired_lock_whichever_broker_detects_it(
    store_fixture: &StoreFixture,
) {
    store_fixture.expect_granted(0, &store_fixture.call()).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &waiter).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    let noticing = store_fixture.acquire(2, &store_fixture.call()).await;
    assert!(matches!(noticing, Acquired::Held(_)), "{noticing:?}");
    store_fixture.claim_next_hand_off(1, &waiter).await;
}

pub async fn t27_a_token_belongs_to_a_grant_and_repeats_do_not_change_it(
    store_fixture: &StoreFixture,
) {
    let call = store_fixture.call();
    let lease = store_fixture.expect_granted(0, &call).await;
    for _ in 0..3 {
        store_fixture.expect_renewed(0, &lease).await;
        assert_eq!(
            store_fixture.expect_granted(1, &new_attempt(&call)).await,
            lease
        );
    }
    assert_eq!(
        store_fixture.expect_state().await.last_fencing_token,
        lease.fencing_token.get()
    );
    assert!(lease.fencing_token.get() <= FencingToken::MAX);
}

pub async fn t28_a_former_holder_never_learns_the_token_of_the_next(store_fixture: &StoreFixture) {
    let old = store_fixture.call();
    let first = store_fixture.expect_granted(0, &old).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    let second = store_fixture.expect_granted(1, &store_fixture.call()).await;
    assert!(second.fencing_token > first.fencing_token);
    assert_eq!(
        store_fixture.acquire(0, &new_attempt(&old)).await,
        Acquired::Ended
    );
    assert_eq!(
        store_fixture.renew(0, &first).await,
        Err(LeaseRejection::Expired)
    );
    let borrowed = lease_of(&old, second.fencing_token);
    assert_ne!(store_fixture.release(0, &borrowed).await, released_now(0));
    store_fixture.expect_renewed(1, &second).await;
}

pub async fn t35_an_idle_lock_is_forgotten(store_fixture: &StoreFixture) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture.expect_released(0, &lease).await;
    store_fixture
        .advance_ms(IDLE_RECORD_TTL_MS - EXPIRED_MS)
        .await;
    assert!(store_fixture.get().await.is_some());
    store_fixture
        .advance_ms(EXPIRED_MS + expiry_ms(TTL_MS) + SLACK_MS)
        .await;
    assert_eq!(store_fixture.get().await, None);
}

pub async fn t35_an_abandoned_line_is_forgotten(store_fixture: &StoreFixture) {
    store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture
        .expect_queued(1, &store_fixture.waiting_call_for(60_000))
        .await;
    store_fixture
        .advance_ms(60_000 + IDLE_RECORD_TTL_MS + SLACK_MS)
        .await;
    assert_eq!(store_fixture.get().await, None);
}

pub async fn t35_commands_that_find_nothing_leave_nothing(store_fixture: &StoreFixture) {
    let unknown = lease_of(
        &store_fixture.call(),
        FencingToken::new(7).expect("a token"),
    );
    assert_eq!(
        store_fixture.release(0, &unknown).await,
        Err(LeaseRejection::NotFound)
    );
    assert_eq!(
        store_fixture.renew(0, &unknown).await,
        Err(LeaseRejection::NotFound)
    );
    store_fixture.touch(0).await;
    assert_eq!(store_fixture.get().await, None);
}

pub async fn t36_a_command_sees_its_own_lock_only(store_fixture: &StoreFixture) {
    let mut calls = ["job", "job:1", "job*", "jo?", "[j]ob"].map(|name| {
        let mut call = store_fixture.call();
        call.lock = lock_key("default", name);
        call
    });
    calls[1].lock = lock_key("job", "job:1");
    for call in &calls {
        store_fixture.expect_granted(0, call).await;
    }
    for call in &calls {
        let state = store_fixture
            .store(0)
            .get(&call.lock)
            .await
            .expect("get")
            .expect("known");
        assert_eq!(
            at_most_one(state.holders).expect("held").lease_id,
            call.lease_id
        );
    }
}

pub async fn t38_names_that_look_like_keys_do_not_collide(store_fixture: &StoreFixture) {
    let names = [
        "a",
        "{a}",
        "a}",
        "{a",
        "}{",
        "%7Ba%7D",
        "%257Ba",
        "a:b",
        ":a",
        "default:a",
        " a",
        "ä",
        "a b",
        "a%",
    ];
    for name in names {
        let mut call = store_fixture.call();
        call.lock = lock_key("default", name);
        let lease = store_fixture.expect_granted(0, &call).await;
        assert_eq!(lease.lock.name(), name);
    }
    let mut elsewhere = store_fixture.call();
    elsewhere.lock = lock_key("a", "b");
    store_fixture.expect_granted(0, &elsewhere).await;
}
