//! Repeated calls, with equal or different arguments, at the same or another broker.

use leasehold_server::{
    lock::{ArgumentsHash, EXPIRED_MS, RELEASED_MAX, TOMBSTONE_MS, expiry_ms},
    store::{Acquired, Cancelled, LeaseRejection},
};

use crate::store_fixture::{
    SLACK_MS, StoreFixture, TTL_MS, assert_remaining, at_most_one, new_attempt, released_before,
    released_now,
};

pub async fn a_repeat_of_a_held_call_renews_the_lease(store_fixture: &StoreFixture) {
    let call = store_fixture.call();
    store_fixture.expect_granted(0, &call).await;
    store_fixture.advance_ms(8_000).await;
    store_fixture.expect_granted(0, &new_attempt(&call)).await;
    let holder = at_most_one(store_fixture.expect_state().await.holders).expect("held");
    assert_remaining(holder.remaining_ms, expiry_ms(TTL_MS));
}

pub async fn a_repeat_at_another_broker_gets_the_same_grant(store_fixture: &StoreFixture) {
    let call = store_fixture.call();
    let lease = store_fixture.expect_granted(0, &call).await;
    assert_eq!(
        store_fixture.expect_granted(1, &new_attempt(&call)).await,
        lease
    );
    assert_eq!(store_fixture.release(2, &lease).await, released_now(0));
}

pub async fn a_repeat_of_a_held_call_with_other_arguments_is_refused(store_fixture: &StoreFixture) {
    let call = store_fixture.call();
    let lease = store_fixture.expect_granted(0, &call).await;
    let mut other = new_attempt(&call);
    other.arguments = ArgumentsHash::of(&[b"other arguments"]);
    assert_eq!(
        store_fixture.acquire(0, &other).await,
        Acquired::RequestIdReused
    );
    assert_eq!(store_fixture.cancel(0, &other).await, Cancelled::Kept);
    store_fixture.expect_renewed(0, &lease).await;
}

pub async fn a_repeat_of_a_waiting_call_with_other_arguments_is_refused(
    store_fixture: &StoreFixture,
) {
    let lease = store_fixture.acquire_long(0).await;
    let call = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &call).await;
    let mut other = new_attempt(&call);
    other.arguments = ArgumentsHash::of(&[b"other arguments"]);
    assert_eq!(
        store_fixture.acquire(2, &other).await,
        Acquired::RequestIdReused
    );
    store_fixture.expect_released(0, &lease).await;
    store_fixture.claim_next_hand_off(1, &call).await;
}

pub async fn a_repeat_by_another_caller_is_refused(store_fixture: &StoreFixture) {
    let call = store_fixture.call();
    store_fixture.expect_granted(0, &call).await;
    let mut other = new_attempt(&call);
    other.lease_id = store_fixture.call().lease_id;
    assert_eq!(
        store_fixture.acquire(0, &other).await,
        Acquired::RequestIdReused
    );
}

pub async fn a_repeat_of_a_waiting_call_keeps_its_place(store_fixture: &StoreFixture) {
    let lease = store_fixture.acquire_long(0).await;
    let (first, second) = (store_fixture.waiting_call(), store_fixture.waiting_call());
    store_fixture.expect_queued(1, &first).await;
    store_fixture.expect_queued(1, &second).await;
    store_fixture.expect_queued(1, &new_attempt(&first)).await;
    assert_eq!(store_fixture.expect_state().await.queue_length, 2);
    store_fixture.expect_released(0, &lease).await;
    store_fixture.claim_next_hand_off(1, &first).await;
}

pub async fn a_repeat_at_another_broker_moves_the_waiter_there(store_fixture: &StoreFixture) {
    let lease = store_fixture.acquire_long(0).await;
    let (first, second) = (store_fixture.waiting_call(), store_fixture.waiting_call());
    store_fixture.expect_queued(1, &first).await;
    store_fixture.expect_queued(1, &second).await;
    store_fixture.expect_queued(2, &new_attempt(&first)).await;
    store_fixture.expect_released(0, &lease).await;
    store_fixture.claim_next_hand_off(2, &first).await;
}

pub async fn a_repeat_of_a_waiting_call_extends_its_wait(store_fixture: &StoreFixture) {
    let lease = store_fixture.acquire_long(0).await;
    let call = store_fixture.waiting_call_for(3_000);
    store_fixture.expect_queued(1, &call).await;
    store_fixture.advance_ms(2_000).await;
    store_fixture.expect_queued(1, &new_attempt(&call)).await;
    store_fixture.advance_ms(2_000).await;
    store_fixture.expect_released(0, &lease).await;
    store_fixture.claim_next_hand_off(1, &call).await;
}

pub async fn a_repeat_of_a_waiting_call_never_shortens_its_wait(store_fixture: &StoreFixture) {
    let lease = store_fixture.acquire_long(0).await;
    let call = store_fixture.waiting_call_for(20_000);
    store_fixture.expect_queued(1, &call).await;
    let mut shorter = new_attempt(&call);
    shorter.wait_ms = 1_000;
    store_fixture.expect_queued(1, &shorter).await;
    store_fixture.advance_ms(5_000).await;
    store_fixture.expect_released(0, &lease).await;
    store_fixture.claim_next_hand_off(1, &call).await;
}

pub async fn a_repeat_that_does_not_wait_leaves_the_waiter_queued(store_fixture: &StoreFixture) {
    let lease = store_fixture.acquire_long(0).await;
    let call = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &call).await;
    let mut impatient = new_attempt(&call);
    impatient.wait_ms = 0;
    let reply = store_fixture.acquire(1, &impatient).await;
    assert!(matches!(reply, Acquired::Held(_)), "{reply:?}");
    store_fixture.expect_released(0, &lease).await;
    store_fixture.claim_next_hand_off(1, &call).await;
}

pub async fn a_repeat_after_the_hand_off_gets_the_grant(store_fixture: &StoreFixture) {
    let lease = store_fixture.acquire_long(0).await;
    let call = store_fixture.waiting_call();
    store_fixture.expect_queued(0, &call).await;
    store_fixture.expect_released(0, &lease).await;
    let grant = store_fixture.next_hand_off(0, &call).await;
    let repeated = store_fixture.expect_granted(0, &new_attempt(&call)).await;
    assert_eq!(repeated.fencing_token, grant.fencing_token);
}

pub async fn a_repeat_of_a_waiting_call_is_granted_a_lock_that_became_free(
    store_fixture: &StoreFixture,
) {
    store_fixture.expect_granted(0, &store_fixture.call()).await;
    let call = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &call).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    store_fixture.expect_granted(1, &new_attempt(&call)).await;
    assert_eq!(store_fixture.expect_state().await.queue_length, 0);
}

pub async fn a_repeat_after_the_release_is_told_that_the_lease_is_over(
    store_fixture: &StoreFixture,
) {
    let call = store_fixture.call();
    let lease = store_fixture.expect_granted(0, &call).await;
    store_fixture.expect_released(0, &lease).await;
    assert_eq!(
        store_fixture.acquire(1, &new_attempt(&call)).await,
        Acquired::Ended
    );
    assert_eq!(
        at_most_one(store_fixture.expect_state().await.holders),
        None
    );
}

pub async fn a_repeat_after_the_expiry_is_told_that_the_lease_is_over(
    store_fixture: &StoreFixture,
) {
    let call = store_fixture.call();
    store_fixture.expect_granted(0, &call).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    assert_eq!(
        store_fixture.acquire(1, &new_attempt(&call)).await,
        Acquired::Ended
    );
    assert_eq!(
        at_most_one(store_fixture.expect_state().await.holders),
        None
    );
}

pub async fn an_expired_lease_is_remembered_for_a_minute(store_fixture: &StoreFixture) {
    let call = store_fixture.call();
    let lease = store_fixture.expect_granted(0, &call).await;
    store_fixture
        .advance_ms(expiry_ms(TTL_MS) + EXPIRED_MS - SLACK_MS)
        .await;
    assert_eq!(
        store_fixture.release(0, &lease).await,
        Err(LeaseRejection::Expired)
    );
    assert_eq!(
        store_fixture.acquire(0, &new_attempt(&call)).await,
        Acquired::Ended
    );
    store_fixture.advance_ms(SLACK_MS).await;
    assert_eq!(
        store_fixture.release(0, &lease).await,
        Err(LeaseRejection::NotFound)
    );
    store_fixture.expect_granted(0, &new_attempt(&call)).await;
}

pub async fn a_released_lease_is_remembered_for_two_seconds_however_many_follow(
    store_fixture: &StoreFixture,
) {
    let first = store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture.expect_released(0, &first).await;
    for _ in 0..2 * RELEASED_MAX {
        let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
        store_fixture.expect_released(0, &lease).await;
    }
    assert_eq!(store_fixture.release(0, &first).await, released_before(0));
    store_fixture.advance_ms(TOMBSTONE_MS).await;
    assert_eq!(
        store_fixture.release(0, &first).await,
        Err(LeaseRejection::NotFound)
    );
}

pub async fn the_last_sixteen_released_leases_are_remembered_however_old(
    store_fixture: &StoreFixture,
) {
    let mut leases = Vec::new();
    for _ in 0..=RELEASED_MAX {
        let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
        store_fixture.expect_released(0, &lease).await;
        store_fixture.advance_ms(TOMBSTONE_MS).await;
        leases.push(lease);
    }
    assert_eq!(
        store_fixture.release(0, &leases[0]).await,
        Err(LeaseRejection::NotFound)
    );
    for lease in &leases[1..] {
        assert_eq!(store_fixture.release(0, lease).await, released_before(0));
    }
}
