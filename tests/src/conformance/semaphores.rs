//! Semaphores: holders acquire permits within a limit, in the order of the queue.

use leasehold_server::{
    lock::{AcquireCommand, EXCLUSIVE_WEIGHT, LeaseRef, Mode, expiry_ms},
    store::{Acquired, LeaseRejection},
};

use crate::store_fixture::{
    SLACK_MS, StoreFixture, TTL_MS, at_most_one, new_attempt, with_mode, with_ttl,
};

const LIMIT: u32 = 5;

fn permits(permits: u32, limit: u32) -> Mode {
    Mode::Semaphore { permits, limit }
}

fn permits_call(store_fixture: &StoreFixture, count: u32) -> AcquireCommand {
    with_mode(store_fixture.call(), permits(count, LIMIT))
}

fn waiting_permits_call(store_fixture: &StoreFixture, count: u32) -> AcquireCommand {
    with_mode(store_fixture.waiting_call(), permits(count, LIMIT))
}

/// Acquires `count` permits for 60 s.
async fn acquire_permits(store_fixture: &StoreFixture, count: u32) -> LeaseRef {
    let call = with_ttl(permits_call(store_fixture, count), 60_000);
    store_fixture.expect_granted(0, &call).await
}

pub async fn permits_are_granted_up_to_the_limit(store_fixture: &StoreFixture) {
    let two = acquire_permits(store_fixture, 2).await;
    acquire_permits(store_fixture, 3).await;
    store_fixture
        .expect_held(0, &permits_call(store_fixture, 1))
        .await;
    store_fixture.expect_released(0, &two).await;
    acquire_permits(store_fixture, 1).await;
    acquire_permits(store_fixture, 1).await;
    store_fixture
        .expect_held(0, &permits_call(store_fixture, 1))
        .await;
}

pub async fn t25_a_heavy_call_at_the_head_is_passed_by_no_light_one(store_fixture: &StoreFixture) {
    let two = acquire_permits(store_fixture, 2).await;
    let other = acquire_permits(store_fixture, 2).await;
    let heavy = waiting_permits_call(store_fixture, 4);
    store_fixture.expect_queued(0, &heavy).await;
    store_fixture
        .expect_held(0, &permits_call(store_fixture, 1))
        .await;
    let light = waiting_permits_call(store_fixture, 1);
    store_fixture.expect_queued(0, &light).await;
    store_fixture.expect_released(0, &two).await;
    assert_eq!(store_fixture.expect_state().await.queue_length, 2);
    store_fixture.expect_released(0, &other).await;
    store_fixture.claim_next_hand_off(0, &heavy).await;
    store_fixture.claim_next_hand_off(0, &light).await;
    assert_eq!(store_fixture.expect_state().await.queue_length, 0);
}

pub async fn t25_one_release_admits_all_that_fit(store_fixture: &StoreFixture) {
    let all = acquire_permits(store_fixture, 5).await;
    let (two, three, one) = (
        waiting_permits_call(store_fixture, 2),
        waiting_permits_call(store_fixture, 3),
        waiting_permits_call(store_fixture, 1),
    );
    store_fixture.expect_queued(0, &two).await;
    store_fixture.expect_queued(1, &three).await;
    store_fixture.expect_queued(0, &one).await;
    store_fixture.expect_released(0, &all).await;
    store_fixture.claim_next_hand_off(0, &two).await;
    store_fixture.claim_next_hand_off(1, &three).await;
    let state = store_fixture.expect_state().await;
    assert_eq!((state.holder_count, state.queue_length), (2, 1));
}

pub async fn t23_permits_of_a_dead_holder_come_back(store_fixture: &StoreFixture) {
    let dead = store_fixture
        .expect_granted(0, &permits_call(store_fixture, 3))
        .await;
    let live = acquire_permits(store_fixture, 2).await;
    let waits = waiting_permits_call(store_fixture, 3);
    store_fixture.expect_queued(1, &waits).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    let grant = at_most_one(store_fixture.touch(1).await.held).expect("its turn");
    assert_eq!(grant.request, waits.request);
    assert_eq!(
        store_fixture.renew(0, &dead).await,
        Err(LeaseRejection::Expired)
    );
    store_fixture.expect_renewed(0, &live).await;
}

pub async fn t23_another_limit_is_a_mismatch(store_fixture: &StoreFixture) {
    let held = acquire_permits(store_fixture, 1).await;
    let other = with_mode(store_fixture.call(), permits(1, LIMIT + 1));
    assert_eq!(
        store_fixture.expect_limit_mismatch(0, &other).await,
        Some(LIMIT)
    );
    let waits = with_mode(store_fixture.waiting_call(), permits(1, LIMIT - 1));
    assert_eq!(
        store_fixture.expect_limit_mismatch(0, &waits).await,
        Some(LIMIT)
    );
    assert_eq!(store_fixture.expect_state().await.queue_length, 0);
    store_fixture.expect_released(0, &held).await;
    store_fixture.expect_granted(0, &other).await;
}

pub async fn a_limit_of_zero_takes_the_one_in_use(store_fixture: &StoreFixture) {
    acquire_permits(store_fixture, 3).await;
    let any = with_mode(store_fixture.call(), permits(2, 0));
    store_fixture.expect_granted(0, &any).await;
    let refused = store_fixture
        .acquire(0, &with_mode(store_fixture.call(), permits(1, 0)))
        .await;
    assert!(matches!(refused, Acquired::Held(_)), "{refused:?}");
    let shown = store_fixture.expect_state().await.holders.into_iter();
    let shown: Vec<_> = shown.map(|held| held.mode).collect();
    assert_eq!(shown, [permits(3, LIMIT), permits(2, LIMIT)]);
}

pub async fn a_limit_of_zero_needs_one_in_use(store_fixture: &StoreFixture) {
    let any = with_mode(store_fixture.call(), permits(1, 0));
    assert_eq!(store_fixture.expect_limit_mismatch(0, &any).await, None);
    assert_eq!(store_fixture.get().await, None);
}

pub async fn more_permits_than_the_limit_in_use_are_a_mismatch(store_fixture: &StoreFixture) {
    acquire_permits(store_fixture, 1).await;
    let greedy = with_mode(store_fixture.waiting_call(), permits(LIMIT + 1, 0));
    assert_eq!(
        store_fixture.expect_limit_mismatch(0, &greedy).await,
        Some(LIMIT)
    );
}

pub async fn a_lock_in_use_is_one_kind_of_lock(store_fixture: &StoreFixture) {
    let semaphore = acquire_permits(store_fixture, 1).await;
    assert_eq!(
        store_fixture
            .expect_limit_mismatch(0, &store_fixture.call())
            .await,
        Some(LIMIT)
    );
    let shared = with_mode(store_fixture.waiting_call(), Mode::Shared);
    assert_eq!(
        store_fixture.expect_limit_mismatch(0, &shared).await,
        Some(LIMIT)
    );
    store_fixture.expect_released(0, &semaphore).await;
    store_fixture.expect_granted(0, &shared).await;
    assert_eq!(
        store_fixture
            .expect_limit_mismatch(0, &permits_call(store_fixture, 1))
            .await,
        Some(EXCLUSIVE_WEIGHT)
    );
    let any = with_mode(store_fixture.call(), permits(1, 0));
    assert_eq!(
        store_fixture.expect_limit_mismatch(0, &any).await,
        Some(EXCLUSIVE_WEIGHT)
    );
}

pub async fn a_line_keeps_the_limit_in_use(store_fixture: &StoreFixture) {
    let held = acquire_permits(store_fixture, 5).await;
    let waits = waiting_permits_call(store_fixture, 1);
    store_fixture.expect_queued(1, &waits).await;
    store_fixture.expect_released(0, &held).await;
    let other = with_mode(store_fixture.call(), permits(1, LIMIT + 1));
    assert_eq!(
        store_fixture.expect_limit_mismatch(0, &other).await,
        Some(LIMIT)
    );
    store_fixture.claim_next_hand_off(1, &waits).await;
}

pub async fn a_repeat_never_checks_the_limit(store_fixture: &StoreFixture) {
    let call = permits_call(store_fixture, 5);
    let held = store_fixture.expect_granted(0, &call).await;
    let other = with_mode(new_attempt(&call), permits(5, LIMIT + 4));
    assert_eq!(store_fixture.expect_granted(0, &other).await, held);
    let waits = waiting_permits_call(store_fixture, 1);
    store_fixture.expect_queued(0, &waits).await;
    store_fixture
        .expect_queued(0, &with_mode(new_attempt(&waits), permits(1, LIMIT + 4)))
        .await;
}

pub async fn renewals_keep_the_permits(store_fixture: &StoreFixture) {
    let held = store_fixture
        .expect_granted(0, &permits_call(store_fixture, 4))
        .await;
    for _ in 0..4 {
        store_fixture
            .advance_ms(expiry_ms(TTL_MS) - 2 * SLACK_MS)
            .await;
        store_fixture.expect_renewed(0, &held).await;
    }
    store_fixture
        .expect_held(0, &permits_call(store_fixture, 2))
        .await;
    acquire_permits(store_fixture, 1).await;
}

pub async fn slots_that_became_free_are_used_again(store_fixture: &StoreFixture) {
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(acquire_permits(store_fixture, 1).await);
    }
    for index in [1, 3, 0] {
        store_fixture.expect_released(0, &held[index]).await;
    }
    let new = acquire_permits(store_fixture, 2).await;
    for lease in [&held[2], &held[4], &new] {
        store_fixture.expect_renewed(0, lease).await;
    }
    assert_eq!(
        store_fixture.renew(0, &held[3]).await,
        Err(LeaseRejection::Released)
    );
    let last = acquire_permits(store_fixture, 1).await;
    store_fixture.expect_renewed(0, &last).await;
    store_fixture
        .expect_held(0, &permits_call(store_fixture, 1))
        .await;
    assert_eq!(store_fixture.expect_state().await.holder_count, 4);
}
