//! Cancellation: cancelling an attempt undoes this attempt and nothing else.

use leasehold_server::{
    lock::{ATTEMPTS_MAX, AcquireCommand, ExpectedAttachment, ReleaseScope, TOMBSTONE_MS},
    store::{Acquired, Cancelled, LeaseRejection},
};

use crate::store_fixture::{SLACK_MS, StoreFixture, add_to_lease, new_attempt, released_now};

pub async fn cancelling_an_older_attempt_keeps_the_newer_queued(store_fixture: &StoreFixture) {
    let lease = store_fixture.acquire_long(0).await;
    let first = store_fixture.waiting_call();
    let second = new_attempt(&first);
    store_fixture.expect_queued(1, &first).await;
    store_fixture.expect_queued(2, &second).await;
    assert_eq!(store_fixture.cancel(1, &first).await, Cancelled::Kept);
    store_fixture.expect_released(0, &lease).await;
    store_fixture.claim_next_hand_off(2, &second).await;
}

pub async fn cancelling_the_newest_attempt_gives_the_waiter_back_to_the_older(
    store_fixture: &StoreFixture,
) {
    let lease = store_fixture.acquire_long(0).await;
    let first = store_fixture.waiting_call();
    let second = new_attempt(&first);
    store_fixture.expect_queued(1, &first).await;
    store_fixture.expect_queued(2, &second).await;
    assert_eq!(store_fixture.cancel(2, &second).await, Cancelled::Kept);
    store_fixture.expect_released(0, &lease).await;
    store_fixture.claim_next_hand_off(1, &first).await;
}

pub async fn cancelling_one_attempt_of_a_holder_keeps_the_lock(store_fixture: &StoreFixture) {
    let first = store_fixture.call();
    let second = new_attempt(&first);
    let lease = store_fixture.expect_granted(0, &first).await;
    store_fixture.expect_granted(1, &second).await;
    assert_eq!(store_fixture.cancel(0, &first).await, Cancelled::Kept);
    store_fixture.expect_renewed(1, &lease).await;
}

pub async fn cancelling_the_last_attempt_of_a_holder_hands_the_lock_on(
    store_fixture: &StoreFixture,
) {
    let call = store_fixture.call();
    let lease = store_fixture.expect_granted(0, &call).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &waiter).await;
    assert_eq!(store_fixture.cancel(0, &call).await, Cancelled::Freed);
    store_fixture.claim_next_hand_off(1, &waiter).await;
    assert_eq!(
        store_fixture.renew(0, &lease).await,
        Err(LeaseRejection::NotFound)
    );
}

pub async fn cancelling_the_last_attempt_of_a_waiter_removes_it_from_the_queue(
    store_fixture: &StoreFixture,
) {
    store_fixture.acquire_long(0).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &waiter).await;
    assert_eq!(store_fixture.cancel(1, &waiter).await, Cancelled::Dequeued);
    assert_eq!(store_fixture.expect_state().await.queue_length, 0);
}

pub async fn cancelling_an_attempt_twice_removes_it_once(store_fixture: &StoreFixture) {
    store_fixture.acquire_long(0).await;
    let first = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &first).await;
    store_fixture.expect_queued(1, &new_attempt(&first)).await;
    assert_eq!(store_fixture.cancel(1, &first).await, Cancelled::Kept);
    assert_eq!(store_fixture.cancel(1, &first).await, Cancelled::Kept);
    assert_eq!(store_fixture.expect_state().await.queue_length, 1);
}

pub async fn an_attempt_that_arrives_twice_counts_once(store_fixture: &StoreFixture) {
    let call = store_fixture.call();
    store_fixture.expect_granted(0, &call).await;
    store_fixture.expect_granted(0, &call).await;
    assert_eq!(store_fixture.cancel(0, &call).await, Cancelled::Freed);
}

pub async fn an_attempt_cancelled_before_it_arrived_is_refused(store_fixture: &StoreFixture) {
    let call = store_fixture.call();
    assert_eq!(store_fixture.cancel(0, &call).await, Cancelled::Unknown);
    assert_eq!(store_fixture.acquire(0, &call).await, Acquired::Cancelled);
    store_fixture.expect_granted(1, &store_fixture.call()).await;
}

pub async fn an_attempt_cancelled_before_it_arrived_is_not_queued(store_fixture: &StoreFixture) {
    store_fixture.acquire_long(0).await;
    let call = store_fixture.waiting_call();
    assert_eq!(store_fixture.cancel(1, &call).await, Cancelled::Unknown);
    assert_eq!(store_fixture.acquire(1, &call).await, Acquired::Cancelled);
    assert_eq!(store_fixture.expect_state().await.queue_length, 0);
}

pub async fn a_tombstone_refuses_its_own_attempt_only(store_fixture: &StoreFixture) {
    let call = store_fixture.call();
    store_fixture.cancel(0, &call).await;
    let lease = store_fixture.expect_granted(1, &new_attempt(&call)).await;
    assert_eq!(store_fixture.acquire(0, &call).await, Acquired::Cancelled);
    store_fixture.expect_renewed(1, &lease).await;
}

pub async fn a_tombstone_is_kept_for_two_seconds(store_fixture: &StoreFixture) {
    let call = store_fixture.call();
    store_fixture.cancel(0, &call).await;
    store_fixture.advance_ms(TOMBSTONE_MS - SLACK_MS).await;
    assert_eq!(store_fixture.acquire(0, &call).await, Acquired::Cancelled);
    store_fixture.advance_ms(SLACK_MS).await;
    store_fixture.expect_granted(0, &call).await;
}

pub async fn cancelling_nine_repeats_of_a_granted_call_keeps_its_lease(
    store_fixture: &StoreFixture,
) {
    let call = store_fixture.call();
    let lease = store_fixture.expect_granted(0, &call).await;
    let repeats: Vec<AcquireCommand> = (0..=ATTEMPTS_MAX).map(|_| new_attempt(&call)).collect();
    for repeat in &repeats {
        store_fixture.expect_granted(1, repeat).await;
    }
    for repeat in &repeats {
        assert_eq!(store_fixture.cancel(1, repeat).await, Cancelled::Kept);
    }
    store_fixture.expect_renewed(0, &lease).await;
    store_fixture.expect_released(0, &lease).await;
    store_fixture.expect_granted(2, &store_fixture.call()).await;
}

pub async fn cancelling_nine_repeats_of_a_granted_entry_keeps_the_entry(
    store_fixture: &StoreFixture,
) {
    let outer = store_fixture.acquire_long(0).await;
    let entry = add_to_lease(&outer, store_fixture.call());
    store_fixture.expect_granted(0, &entry).await;
    let repeats: Vec<AcquireCommand> = (0..=ATTEMPTS_MAX).map(|_| new_attempt(&entry)).collect();
    for repeat in &repeats {
        store_fixture.expect_granted(1, repeat).await;
    }
    for repeat in &repeats {
        store_fixture.cancel(1, repeat).await;
    }
    let left = store_fixture.store(0).release(
        &outer,
        ReleaseScope::Entry(entry.request),
        ExpectedAttachment::Any,
    );
    assert_eq!(left.await, Ok(released_now(1)));
}

pub async fn a_ninth_queued_attempt_is_refused_and_the_other_eight_stay_queued(
    store_fixture: &StoreFixture,
) {
    let lease = store_fixture.acquire_long(0).await;
    let call = store_fixture.waiting_call();
    let attempts: Vec<AcquireCommand> = (0..ATTEMPTS_MAX).map(|_| new_attempt(&call)).collect();
    for attempt in &attempts {
        store_fixture.expect_queued(1, attempt).await;
    }
    let ninth = new_attempt(&call);
    assert_eq!(
        store_fixture.acquire(1, &ninth).await,
        Acquired::TooManyAttempts
    );
    store_fixture.expect_queued(1, &attempts[0]).await;
    assert_eq!(store_fixture.cancel(1, &ninth).await, Cancelled::Kept);
    for attempt in &attempts[1..] {
        assert_eq!(store_fixture.cancel(1, attempt).await, Cancelled::Kept);
    }
    store_fixture.expect_queued(1, &new_attempt(&call)).await;
    store_fixture.expect_released(0, &lease).await;
    store_fixture.claim_next_hand_off(1, &call).await;
}

pub async fn attempts_at_a_broker_that_is_gone_do_not_count_towards_the_limit(
    store_fixture: &StoreFixture,
) {
    let lease = store_fixture.acquire_long(0).await;
    let call = store_fixture.waiting_call();
    for _ in 0..ATTEMPTS_MAX {
        store_fixture.expect_queued(1, &new_attempt(&call)).await;
    }
    store_fixture
        .expect_queued(2, &store_fixture.waiting_call())
        .await;
    store_fixture.advance_with_touches(13_500, &[2]).await;
    store_fixture.expect_queued(2, &new_attempt(&call)).await;
    store_fixture.expect_released(0, &lease).await;
    store_fixture.claim_next_hand_off(2, &call).await;
}

pub async fn a_cancelled_call_may_come_again(store_fixture: &StoreFixture) {
    let call = store_fixture.call();
    let first = store_fixture.expect_granted(0, &call).await;
    store_fixture.cancel(0, &call).await;
    let second = store_fixture.expect_granted(0, &new_attempt(&call)).await;
    assert!(second.fencing_token > first.fencing_token);
}
