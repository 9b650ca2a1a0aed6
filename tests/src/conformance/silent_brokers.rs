//! Brokers that stop touching a lock while others touch it: their waiters must not block the queue.

use leasehold_server::{lock::expiry_ms, store::Cancelled};

use crate::store_fixture::{StoreFixture, TTL_MS, at_most_one, new_attempt};

pub async fn waiters_of_a_silent_broker_are_passed_over_and_keep_their_place(
    store_fixture: &StoreFixture,
) {
    let held = store_fixture.acquire_long(0).await;
    let (quiet, live) = (store_fixture.waiting_call(), store_fixture.waiting_call());
    store_fixture.expect_queued(1, &quiet).await;
    store_fixture.expect_queued(2, &live).await;
    store_fixture.advance_with_touches(7_500, &[2]).await;
    store_fixture.expect_released(0, &held).await;
    let lease = store_fixture.claim_next_hand_off(2, &live).await;
    assert_eq!(store_fixture.expect_state().await.queue_length, 1);
    store_fixture.touch(1).await;
    store_fixture.expect_released(2, &lease).await;
    store_fixture.claim_next_hand_off(1, &quiet).await;
}

pub async fn a_broker_that_touches_is_not_silent(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let (first, second) = (store_fixture.waiting_call(), store_fixture.waiting_call());
    store_fixture.expect_queued(1, &first).await;
    store_fixture.expect_queued(2, &second).await;
    store_fixture.advance_with_touches(15_000, &[1, 2]).await;
    store_fixture.expect_released(0, &held).await;
    store_fixture.claim_next_hand_off(1, &first).await;
}

pub async fn a_silent_broker_is_notified_to_rejoin_the_queue(store_fixture: &StoreFixture) {
    store_fixture.acquire_long(0).await;
    store_fixture
        .expect_queued(1, &store_fixture.waiting_call())
        .await;
    store_fixture
        .expect_queued(2, &store_fixture.waiting_call())
        .await;
    assert!(!store_fixture.touch(1).await.rejoin);
    store_fixture.advance_with_touches(7_500, &[2]).await;
    assert!(store_fixture.touch(1).await.rejoin);
    assert!(!store_fixture.touch(1).await.rejoin);
}

pub async fn a_broker_without_a_queued_waiter_is_notified_to_rejoin(store_fixture: &StoreFixture) {
    store_fixture.acquire_long(0).await;
    store_fixture
        .expect_queued(1, &store_fixture.waiting_call())
        .await;
    assert!(store_fixture.touch(2).await.rejoin);
}

pub async fn a_waiter_that_was_dropped_joins_again_at_the_tail(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let (dropped, live, later) = (
        store_fixture.waiting_call(),
        store_fixture.waiting_call(),
        store_fixture.waiting_call(),
    );
    store_fixture.expect_queued(1, &dropped).await;
    store_fixture.expect_queued(2, &live).await;
    store_fixture.expect_queued(2, &later).await;
    store_fixture.advance_with_touches(13_500, &[2]).await;
    store_fixture.expect_released(2, &held).await;
    let lease = store_fixture.claim_next_hand_off(2, &live).await;
    store_fixture.expect_queued(1, &new_attempt(&dropped)).await;
    store_fixture.expect_released(2, &lease).await;
    let lease = store_fixture.claim_next_hand_off(2, &later).await;
    store_fixture.expect_released(2, &lease).await;
    store_fixture.claim_next_hand_off(1, &dropped).await;
}

pub async fn a_repeat_at_a_live_broker_keeps_the_queue_position_of_a_silent_one(
    store_fixture: &StoreFixture,
) {
    let held = store_fixture.acquire_long(0).await;
    let (moved, other) = (store_fixture.waiting_call(), store_fixture.waiting_call());
    store_fixture.expect_queued(1, &moved).await;
    store_fixture.expect_queued(2, &other).await;
    store_fixture.advance_with_touches(9_000, &[2]).await;
    store_fixture.expect_queued(3, &new_attempt(&moved)).await;
    store_fixture.expect_released(0, &held).await;
    store_fixture.claim_next_hand_off(3, &moved).await;
}

pub async fn a_queued_call_keeps_its_position_while_one_of_its_brokers_is_alive(
    store_fixture: &StoreFixture,
) {
    let held = store_fixture.acquire_long(0).await;
    let (twice, later) = (store_fixture.waiting_call(), store_fixture.waiting_call());
    store_fixture.expect_queued(1, &twice).await;
    store_fixture.expect_queued(2, &new_attempt(&twice)).await;
    store_fixture.expect_queued(3, &later).await;
    store_fixture.advance_with_touches(7_500, &[1, 3]).await;
    store_fixture.expect_released(0, &held).await;
    let lease = store_fixture.claim_next_hand_off(1, &twice).await;
    store_fixture.expect_released(1, &lease).await;
    store_fixture.claim_next_hand_off(3, &later).await;
}

pub async fn cancelling_the_last_attempt_at_a_live_broker_releases_the_lock(
    store_fixture: &StoreFixture,
) {
    let held = store_fixture.acquire_long(0).await;
    let twice = store_fixture.waiting_call();
    let silent = new_attempt(&twice);
    store_fixture.expect_queued(1, &twice).await;
    store_fixture.expect_queued(2, &silent).await;
    store_fixture.advance_with_touches(13_500, &[1]).await;
    store_fixture.expect_released(0, &held).await;
    store_fixture.claim_next_hand_off(1, &twice).await;
    assert_eq!(store_fixture.cancel(1, &twice).await, Cancelled::Freed);
}

pub async fn a_stall_of_the_store_makes_no_broker_silent(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let (first, second) = (store_fixture.waiting_call(), store_fixture.waiting_call());
    store_fixture.expect_queued(1, &first).await;
    store_fixture.expect_queued(2, &second).await;
    for _ in 0..4 {
        store_fixture.advance_ms(10_000).await;
        assert!(!store_fixture.touch(2).await.rejoin);
    }
    store_fixture.expect_released(0, &held).await;
    store_fixture.claim_next_hand_off(1, &first).await;
}

pub async fn a_lock_that_expired_in_a_stall_goes_to_the_next_waiter(store_fixture: &StoreFixture) {
    store_fixture.expect_granted(0, &store_fixture.call()).await;
    let (first, second) = (store_fixture.waiting_call(), store_fixture.waiting_call());
    store_fixture.expect_queued(1, &first).await;
    store_fixture.expect_queued(2, &second).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    assert_eq!(at_most_one(store_fixture.touch(2).await.held), None);
    store_fixture.claim_next_hand_off(1, &first).await;
}

pub async fn a_call_of_a_silent_broker_itself_is_granted(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let (quiet, live) = (store_fixture.waiting_call(), store_fixture.waiting_call());
    store_fixture.expect_queued(1, &quiet).await;
    store_fixture.expect_queued(2, &live).await;
    store_fixture.advance_with_touches(7_500, &[2]).await;
    store_fixture.expect_released(1, &held).await;
    assert!(!store_fixture.next_hand_off(1, &quiet).await.is_provisional);
}
