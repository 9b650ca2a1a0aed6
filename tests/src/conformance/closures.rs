//! Closures: a lock that grants nothing until a time, after the hold of a lease with `at_least` or
//! by a command of an operator.

use leasehold_server::{
    lock::{
        AcquireCommand, ActiveClosure, ClosureCause, ExpectedAttachment, IDLE_RECORD_TTL_MS,
        LeaseOptions, Owner, PROVISIONAL_GRANT_MS, ReleaseScope, expiry_ms,
    },
    store::Cancelled,
};

use crate::store_fixture::{
    SLACK_MS, StoreFixture, TTL_MAX_MS, TTL_MS, assert_remaining, at_most_one, lease_of, operator,
    with_ttl,
};

const AT_LEAST_MS: u64 = 300_000;

fn with_at_least(call: AcquireCommand) -> AcquireCommand {
    AcquireCommand {
        options: LeaseOptions {
            at_least_ms: AT_LEAST_MS,
            ..call.options
        },
        ..call
    }
}

/// Asserts that the lock is closed, for a call that does not wait and for an inspection.
async fn expect_closed(
    store_fixture: &StoreFixture,
    cause: ClosureCause,
    owner: &Owner,
    remaining_ms: u64,
) {
    let contention = store_fixture.expect_held(0, &store_fixture.call()).await;
    let state = store_fixture.expect_state().await;
    for closure in [contention.closure, state.closure] {
        let active = closure.expect("the lock is closed");
        assert_eq!(
            (active.closure.cause, &active.closure.owner),
            (cause, owner)
        );
        assert_remaining(active.remaining_ms, remaining_ms);
    }
}

fn remaining_ms(closure: Option<ActiveClosure>) -> u64 {
    closure.expect("the lock is closed").remaining_ms
}

pub async fn at_least_closes_a_lock_after_a_release(store_fixture: &StoreFixture) {
    let call = with_at_least(store_fixture.call());
    let held = store_fixture.expect_granted(0, &call).await;
    store_fixture.advance_ms(1_000).await;
    store_fixture.expect_released(1, &held).await;
    let left_ms = AT_LEAST_MS - 1_000;
    expect_closed(store_fixture, ClosureCause::AtLeast, &call.owner, left_ms).await;
    store_fixture.advance_ms(left_ms).await;
    store_fixture.expect_granted(0, &store_fixture.call()).await;
    assert_eq!(store_fixture.expect_state().await.closure, None);
}

pub async fn at_least_closes_a_lock_after_an_expiry(store_fixture: &StoreFixture) {
    let call = with_at_least(store_fixture.call());
    store_fixture.expect_granted(0, &call).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    let state = store_fixture.expect_state().await;
    let left_ms = AT_LEAST_MS - expiry_ms(TTL_MS);
    assert_remaining(state.closed_ms(), left_ms);
    expect_closed(store_fixture, ClosureCause::AtLeast, &call.owner, left_ms).await;
    store_fixture.advance_ms(left_ms).await;
    store_fixture.expect_granted(0, &store_fixture.call()).await;
}

pub async fn at_least_closes_a_lock_after_a_disconnect_grace(store_fixture: &StoreFixture) {
    let call = with_at_least(store_fixture.call());
    let held = store_fixture.expect_granted(0, &call).await;
    let store = store_fixture.store(0);
    let ended = store.release(&held, ReleaseScope::ExpireNow, ExpectedAttachment::Any);
    assert!(matches!(ended.await, Ok(Ok(_))));
    expect_closed(
        store_fixture,
        ClosureCause::AtLeast,
        &call.owner,
        AT_LEAST_MS,
    )
    .await;
}

pub async fn at_least_is_over_after_a_longer_hold(store_fixture: &StoreFixture) {
    let mut call = with_ttl(with_at_least(store_fixture.call()), TTL_MAX_MS);
    call.options.at_least_ms = TTL_MAX_MS;
    let held = store_fixture.expect_granted(0, &call).await;
    store_fixture.advance_ms(TTL_MAX_MS).await;
    store_fixture.expect_released(0, &held).await;
    store_fixture.expect_granted(0, &store_fixture.call()).await;
}

pub async fn at_least_does_not_follow_a_grant_that_was_not_received(store_fixture: &StoreFixture) {
    let call = with_at_least(store_fixture.call());
    store_fixture.expect_granted(0, &call).await;
    assert_eq!(store_fixture.cancel(0, &call).await, Cancelled::Freed);
    let held = store_fixture.acquire_long(0).await;
    let silent = with_at_least(store_fixture.waiting_call());
    let next = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &silent).await;
    store_fixture.expect_queued(0, &next).await;
    store_fixture.expect_released(0, &held).await;
    store_fixture.next_hand_off(1, &silent).await;
    store_fixture.advance_ms(PROVISIONAL_GRANT_MS).await;
    let hand_off = at_most_one(store_fixture.touch(0).await.held).expect("the next at once");
    assert_eq!(hand_off.request, next.request);
}

/// The entry that is left is rolled back, which closes nothing by itself.
pub async fn a_released_entry_closes_a_lock_with_at_least(store_fixture: &StoreFixture) {
    let call = with_at_least(store_fixture.call());
    let held = store_fixture.expect_granted(0, &call).await;
    let entry = store_fixture.reentry_call(&held);
    assert_eq!(store_fixture.expect_reentered(0, &entry).await, 2);
    store_fixture
        .release_entry(0, &held, &call)
        .await
        .expect("it was entered");
    store_fixture.expect_renewed(0, &held).await;
    let cancelled = store_fixture.cancel(0, &entry).await;
    assert_eq!(cancelled, Cancelled::Freed);
    expect_closed(
        store_fixture,
        ClosureCause::AtLeast,
        &call.owner,
        AT_LEAST_MS,
    )
    .await;
}

pub async fn waiters_keep_their_positions_until_at_least_has_passed(store_fixture: &StoreFixture) {
    let call = with_at_least(store_fixture.call());
    let held = store_fixture.expect_granted(0, &call).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(0, &waiter).await;
    store_fixture.expect_released(0, &held).await;
    let touched = store_fixture.touch(0).await;
    assert_eq!(touched.held, []);
    let closed_ms = touched.next_event_ms.expect("the end of the closure");
    assert_remaining(closed_ms, AT_LEAST_MS);
    store_fixture.advance_with_touches(AT_LEAST_MS, &[0]).await;
    let hand_off = at_most_one(store_fixture.touch(0).await.held).expect("its turn");
    let lease = lease_of(&waiter, hand_off.fencing_token);
    store_fixture.expect_renewed(0, &lease).await;
}

pub async fn an_operator_closes_a_lock_behind_its_holder(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(0, &waiter).await;
    let closure = store_fixture.close(1, AT_LEAST_MS).await;
    assert_remaining(remaining_ms(closure), AT_LEAST_MS);
    store_fixture.expect_renewed(0, &held).await;
    let entry = store_fixture.reentry_call(&held);
    assert_eq!(store_fixture.expect_reentered(0, &entry).await, 2);
    let contention = store_fixture.expect_held(0, &store_fixture.call()).await;
    assert_eq!(contention.holders.len(), 1);
    assert_remaining(contention.closed_ms(), AT_LEAST_MS);
    store_fixture.expect_released(0, &held).await;
    assert_eq!(store_fixture.touch(0).await.held, []);
    let (by, left_ms) = (operator(), AT_LEAST_MS);
    expect_closed(store_fixture, ClosureCause::Operator, &by, left_ms).await;
}

pub async fn a_lock_that_is_opened_is_granted_to_the_next_waiter(store_fixture: &StoreFixture) {
    assert_eq!(store_fixture.open(0).await, None, "it is not closed");
    store_fixture.close(0, AT_LEAST_MS).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &waiter).await;
    let opened = store_fixture.open(0).await;
    assert_remaining(remaining_ms(opened), AT_LEAST_MS);
    let hand_off = store_fixture.next_hand_off(1, &waiter).await;
    let lease = lease_of(&waiter, hand_off.fencing_token);
    store_fixture.expect_renewed(1, &lease).await;
    assert_eq!(store_fixture.open(0).await, None, "it is open already");
}

pub async fn an_operator_opens_a_lock_that_a_lease_has_closed(store_fixture: &StoreFixture) {
    let call = with_at_least(store_fixture.call());
    let held = store_fixture.expect_granted(0, &call).await;
    store_fixture.expect_released(0, &held).await;
    let opened = store_fixture.open(1).await.expect("it was closed");
    assert_eq!(opened.closure.cause, ClosureCause::AtLeast);
    assert_eq!(opened.closure.owner, call.owner);
    store_fixture.expect_granted(0, &store_fixture.call()).await;
}

pub async fn a_closure_is_never_shortened(store_fixture: &StoreFixture) {
    store_fixture.close(0, AT_LEAST_MS).await;
    let shorter = store_fixture.close(0, 1_000).await;
    assert_remaining(remaining_ms(shorter), AT_LEAST_MS);
    let longer = store_fixture.close(0, 2 * AT_LEAST_MS).await;
    assert_remaining(remaining_ms(longer), 2 * AT_LEAST_MS);
    store_fixture.advance_ms(2 * AT_LEAST_MS).await;
    assert_eq!(store_fixture.open(0).await, None, "the time has passed");
    let call = with_at_least(store_fixture.call());
    let held = store_fixture.expect_granted(0, &call).await;
    let behind = store_fixture.close(0, 2 * AT_LEAST_MS).await;
    assert_remaining(remaining_ms(behind), 2 * AT_LEAST_MS);
    store_fixture.expect_released(0, &held).await;
    let (by, left_ms) = (operator(), 2 * AT_LEAST_MS);
    expect_closed(store_fixture, ClosureCause::Operator, &by, left_ms).await;
}

pub async fn a_lock_that_nobody_has_used_can_be_closed(store_fixture: &StoreFixture) {
    let closed_for_ms = 3 * IDLE_RECORD_TTL_MS;
    store_fixture.close(0, closed_for_ms).await;
    store_fixture.advance_ms(2 * IDLE_RECORD_TTL_MS).await;
    let left_ms = closed_for_ms - 2 * IDLE_RECORD_TTL_MS;
    expect_closed(store_fixture, ClosureCause::Operator, &operator(), left_ms).await;
    store_fixture.advance_ms(left_ms + SLACK_MS).await;
    store_fixture.expect_granted(0, &store_fixture.call()).await;
}
