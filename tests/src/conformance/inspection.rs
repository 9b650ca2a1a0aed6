//! Inspection of a lock.

use leasehold_server::{
    lock::{INSPECT_ENTRIES_MAX, expiry_ms},
    store::Acquired,
};

use crate::store_fixture::{
    LONG_MS, SLACK_MS, StoreFixture, TTL_MS, assert_remaining, at_most_one,
};

pub async fn an_unknown_lock_is_unknown(store_fixture: &StoreFixture) {
    assert_eq!(store_fixture.get().await, None);
}

pub async fn a_holder_is_shown_with_owner_token_and_times(store_fixture: &StoreFixture) {
    let mut call = store_fixture.call();
    call.owner.reason = "to see {it} with % and \"quotes\"\u{1F512}".to_owned();
    call.owner.labels = vec![
        ("k".to_owned(), "v w".to_owned()),
        ("l".to_owned(), String::new()),
    ];
    let Acquired::Granted(grant) = store_fixture.acquire(0, &call).await else {
        panic!("not granted");
    };
    let holder = at_most_one(store_fixture.expect_state().await.holders).expect("held");
    assert_eq!(holder.owner, call.owner);
    assert_eq!(holder.lease_id, call.lease_id);
    assert_eq!(holder.fencing_token, grant.fencing_token);
    assert_eq!(holder.since_ms, grant.acquired_ms);
    assert_remaining(holder.remaining_ms, expiry_ms(TTL_MS));
}

pub async fn waiters_are_shown_in_order_with_their_times(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let calls = [5, 10, 15].map(|seconds| store_fixture.waiting_call_for(seconds * 1_000));
    for (n, call) in calls.iter().enumerate() {
        store_fixture.expect_queued(n, call).await;
    }
    let state = store_fixture.expect_state().await;
    assert_eq!(
        at_most_one(state.holders).expect("held").fencing_token,
        held.fencing_token
    );
    assert_eq!(state.queue_length, 3);
    for (listed_waiter, call) in state.waiters.iter().zip(&calls) {
        assert_eq!(listed_waiter.owner, call.owner);
        assert_remaining(listed_waiter.remaining_ms, call.wait_ms);
    }
}

pub async fn a_waiter_keeps_the_time_at_which_it_joined(store_fixture: &StoreFixture) {
    store_fixture.acquire_long(0).await;
    let call = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &call).await;
    let since_ms = store_fixture.expect_state().await.waiters[0].since_ms;
    store_fixture.advance_ms(5_000).await;
    store_fixture
        .expect_queued(2, &crate::store_fixture::new_attempt(&call))
        .await;
    let listed_waiter = store_fixture.expect_state().await.waiters.remove(0);
    assert_eq!(listed_waiter.since_ms, since_ms);
    assert_remaining(listed_waiter.remaining_ms, LONG_MS);
}

pub async fn at_most_a_hundred_waiters_are_shown_and_all_are_counted(store_fixture: &StoreFixture) {
    store_fixture.acquire_long(0).await;
    let calls: Vec<_> = (0..INSPECT_ENTRIES_MAX + 20)
        .map(|_| store_fixture.waiting_call())
        .collect();
    for call in &calls {
        store_fixture.expect_queued(1, call).await;
    }
    let state = store_fixture.expect_state().await;
    assert_eq!(state.waiters.len(), INSPECT_ENTRIES_MAX);
    assert_eq!(state.queue_length as usize, INSPECT_ENTRIES_MAX + 20);
    let listed_waiter = state.waiters.iter().map(|waiting| &waiting.owner);
    assert!(listed_waiter.eq(calls[..INSPECT_ENTRIES_MAX].iter().map(|call| &call.owner)));
}

pub async fn an_expired_holder_is_not_shown(store_fixture: &StoreFixture) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS) - SLACK_MS).await;
    assert!(at_most_one(store_fixture.expect_state().await.holders).is_some());
    store_fixture.advance_ms(SLACK_MS).await;
    let state = store_fixture.expect_state().await;
    assert_eq!(at_most_one(state.holders), None);
    assert_eq!(state.last_fencing_token, lease.fencing_token.get());
}

pub async fn a_rejected_call_receives_the_holder_and_the_queue_length(
    store_fixture: &StoreFixture,
) {
    let held = store_fixture.acquire_long(0).await;
    store_fixture
        .expect_queued(1, &store_fixture.waiting_call())
        .await;
    store_fixture
        .expect_queued(2, &store_fixture.waiting_call())
        .await;
    let Acquired::Held(contention) = store_fixture.acquire(3, &store_fixture.call()).await else {
        panic!("not refused");
    };
    assert_eq!(contention.queue_length, 2);
    let holder = at_most_one(contention.holders).expect("held");
    assert_eq!(holder.fencing_token, held.fencing_token);
}

pub async fn inspection_grants_nothing(store_fixture: &StoreFixture) {
    store_fixture.expect_granted(0, &store_fixture.call()).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &waiter).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    let before = store_fixture.expect_state().await.last_fencing_token;
    assert_eq!(
        store_fixture.expect_state().await.last_fencing_token,
        before
    );
    assert_eq!(store_fixture.expect_state().await.queue_length, 1);
    store_fixture.touch(1).await;
    assert!(store_fixture.expect_state().await.last_fencing_token > before);
}
