//! The queue of a lock: its order, its end and its limit.

use futures::stream::{StreamExt as _, iter};
use leasehold_server::{
    lock::{AcquireCommand, PROVISIONAL_GRANT_MS, WAITERS_MAX, expiry_ms},
    store::{Acquired, Cancelled},
};

use crate::store_fixture::{SLACK_MS, StoreFixture, TTL_MS, assert_remaining, at_most_one};

const CONCURRENT_CALLS: usize = 64;

pub async fn waiters_of_all_brokers_share_one_queue(store_fixture: &StoreFixture) {
    let mut lease = store_fixture.acquire_long(0).await;
    let waiters: Vec<AcquireCommand> = (0..8).map(|_| store_fixture.waiting_call()).collect();
    for (i, waiter) in waiters.iter().enumerate() {
        store_fixture.expect_queued(i * 3 % 4, waiter).await;
    }
    for (i, waiter) in waiters.iter().enumerate() {
        store_fixture.expect_released(0, &lease).await;
        lease = store_fixture.claim_next_hand_off(i * 3 % 4, waiter).await;
    }
    assert_eq!(store_fixture.expect_state().await.queue_length, 0);
}

pub async fn a_call_that_leaves_does_not_change_the_order_of_the_others(
    store_fixture: &StoreFixture,
) {
    let mut lease = store_fixture.acquire_long(0).await;
    let waiters = [(); 5].map(|()| store_fixture.waiting_call());
    for waiter in &waiters {
        store_fixture.expect_queued(1, waiter).await;
    }
    assert_eq!(
        store_fixture.cancel(1, &waiters[0]).await,
        Cancelled::Dequeued
    );
    assert_eq!(
        store_fixture.cancel(1, &waiters[2]).await,
        Cancelled::Dequeued
    );
    for i in [1, 3, 4] {
        store_fixture.expect_released(1, &lease).await;
        lease = store_fixture.claim_next_hand_off(1, &waiters[i]).await;
    }
}

pub async fn a_call_without_a_wait_is_rejected_while_others_are_queued(
    store_fixture: &StoreFixture,
) {
    store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture
        .expect_queued(1, &store_fixture.waiting_call())
        .await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    let Acquired::Held(contention) = store_fixture.acquire(2, &store_fixture.call()).await else {
        panic!("passed the queue");
    };
    assert_eq!(
        (at_most_one(contention.holders), contention.queue_length),
        (None, 1)
    );
}

pub async fn a_free_lock_without_a_queue_is_granted_at_once_to_a_waiting_call(
    store_fixture: &StoreFixture,
) {
    store_fixture
        .expect_granted(0, &store_fixture.waiting_call())
        .await;
    assert_eq!(store_fixture.expect_state().await.queue_length, 0);
}

pub async fn a_waiter_receives_the_time_of_the_next_possible_grant(store_fixture: &StoreFixture) {
    store_fixture.expect_granted(0, &store_fixture.call()).await;
    let next_event_ms = store_fixture
        .expect_queued(1, &store_fixture.waiting_call())
        .await;
    assert_remaining(next_event_ms.expect("a time"), expiry_ms(TTL_MS));
}

pub async fn a_waiter_behind_a_provisional_grant_receives_the_time_of_its_lapse(
    store_fixture: &StoreFixture,
) {
    let lease = store_fixture.acquire_long(0).await;
    store_fixture
        .expect_queued(1, &store_fixture.waiting_call())
        .await;
    store_fixture.expect_released(0, &lease).await;
    let next_event_ms = store_fixture
        .expect_queued(2, &store_fixture.waiting_call())
        .await;
    assert_remaining(next_event_ms.expect("a time"), PROVISIONAL_GRANT_MS);
}

pub async fn a_holder_that_expires_is_followed_by_the_next_waiter(store_fixture: &StoreFixture) {
    store_fixture.expect_granted(0, &store_fixture.call()).await;
    let (first, second) = (store_fixture.waiting_call(), store_fixture.waiting_call());
    store_fixture.expect_queued(1, &first).await;
    store_fixture.expect_queued(2, &second).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    store_fixture.touch(2).await;
    store_fixture.claim_next_hand_off(1, &first).await;
}

pub async fn waiters_past_their_time_make_room_for_others(store_fixture: &StoreFixture) {
    let lease = store_fixture.acquire_long(0).await;
    for _ in 0..20 {
        store_fixture
            .expect_queued(1, &store_fixture.waiting_call_for(1_000))
            .await;
    }
    let patient = store_fixture.waiting_call();
    store_fixture.expect_queued(2, &patient).await;
    store_fixture.advance_ms(expiry_ms(1_000)).await;
    store_fixture.expect_released(0, &lease).await;
    store_fixture.claim_next_hand_off(2, &patient).await;
    assert_eq!(store_fixture.expect_state().await.queue_length, 0);
}

pub async fn a_release_reaches_a_waiter_behind_hundreds_past_their_time(
    store_fixture: &StoreFixture,
) {
    let lease = store_fixture.acquire_long(0).await;
    for _ in 0..600 {
        store_fixture
            .expect_queued(1, &store_fixture.waiting_call_for(30_000))
            .await;
    }
    let (far, near) = (store_fixture.waiting_call(), store_fixture.waiting_call());
    store_fixture.expect_queued(1, &far).await;
    store_fixture.expect_queued(0, &near).await;
    store_fixture.advance_ms(expiry_ms(30_000)).await;
    store_fixture.expect_released(0, &lease).await;
    let lease = store_fixture.claim_next_hand_off(1, &far).await;
    assert_eq!(store_fixture.expect_state().await.queue_length, 1);
    store_fixture.expect_released(1, &lease).await;
    store_fixture.claim_next_hand_off(0, &near).await;
}

pub async fn an_expiry_reaches_a_waiter_behind_hundreds_past_their_time(
    store_fixture: &StoreFixture,
) {
    store_fixture.expect_granted(0, &store_fixture.call()).await;
    for _ in 0..600 {
        store_fixture
            .expect_queued(1, &store_fixture.waiting_call_for(TTL_MS))
            .await;
    }
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(0, &waiter).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS) + SLACK_MS).await;
    store_fixture.touch(0).await;
    let holder =
        at_most_one(store_fixture.expect_state().await.holders).expect("granted by the touch");
    assert_eq!(holder.lease_id, waiter.lease_id);
}

pub async fn t37_the_queue_is_limited_and_rejects_calls_when_full(store_fixture: &StoreFixture) {
    let lease = store_fixture.acquire_long(0).await;
    let first = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &first).await;
    let others: Vec<_> = (1..WAITERS_MAX)
        .map(|_| store_fixture.waiting_call())
        .collect();
    let joined = iter(&others).map(|waiter| store_fixture.expect_queued(1, waiter));
    joined.buffer_unordered(CONCURRENT_CALLS).count().await;
    let refused = store_fixture.waiting_call();
    assert_eq!(
        store_fixture.acquire(1, &refused).await,
        Acquired::QueueFull
    );
    assert_eq!(
        store_fixture
            .acquire(2, &store_fixture.waiting_call())
            .await,
        Acquired::QueueFull
    );
    let no_wait = store_fixture.acquire(2, &store_fixture.call()).await;
    assert!(matches!(no_wait, Acquired::Held(_)), "{no_wait:?}");
    store_fixture
        .expect_queued(1, &crate::store_fixture::new_attempt(&first))
        .await;
    assert_eq!(store_fixture.cancel(1, &refused).await, Cancelled::Unknown);
    store_fixture.expect_released(1, &lease).await;
    store_fixture.claim_next_hand_off(1, &first).await;
    store_fixture
        .expect_queued(2, &store_fixture.waiting_call())
        .await;
    assert_eq!(store_fixture.expect_state().await.queue_length, WAITERS_MAX);
}

/// The clock of the broker may run slower than the store's by a fifth, so by that clock the waiter
/// still waits.
pub async fn a_waiter_is_granted_within_the_clock_tolerance_after_its_wait(
    store_fixture: &StoreFixture,
) {
    let lease = store_fixture.acquire_long(0).await;
    let waiter = store_fixture.waiting_call_for(5_000);
    store_fixture.expect_queued(1, &waiter).await;
    store_fixture.advance_ms(5_500).await;
    store_fixture.expect_released(0, &lease).await;
    store_fixture.claim_next_hand_off(1, &waiter).await;
}

/// The broker ends the wait in time. By the clock of the broker, which may run slower, the wait can
/// take a fifth longer.
pub async fn a_waiter_is_not_granted_after_its_wait_and_the_clock_tolerance(
    store_fixture: &StoreFixture,
) {
    let lease = store_fixture.acquire_long(0).await;
    let waiter = store_fixture.waiting_call_for(5_000);
    store_fixture.expect_queued(1, &waiter).await;
    store_fixture.advance_ms(5_000 - SLACK_MS).await;
    assert_eq!(store_fixture.expect_state().await.waiters.len(), 1);
    store_fixture.advance_ms(SLACK_MS).await;
    assert_eq!(store_fixture.expect_state().await.waiters, []);
    store_fixture.advance_ms(expiry_ms(5_000) - 5_000).await;
    store_fixture.expect_released(1, &lease).await;
    assert_eq!(
        at_most_one(store_fixture.expect_state().await.holders),
        None
    );
}
