//! SetLockLimit: a set limit takes precedence over the limits of callers.

use leasehold_server::{
    lock::{AcquireCommand, IDLE_RECORD_TTL_MS, LeaseRef, Mode, PermitUsage, expiry_ms},
    store::LimitSet,
};

use crate::store_fixture::{
    SLACK_MS, StoreFixture, TTL_MS, new_attempt, with_hold_and_delay, with_mode, with_ttl,
};

const DELAY_MS: u64 = 5_000;

fn permits_call(store_fixture: &StoreFixture, permits: u32, limit: u32) -> AcquireCommand {
    let call = with_ttl(store_fixture.call(), 60_000);
    with_mode(call, Mode::Semaphore { permits, limit })
}

fn waiting_permits_call(store_fixture: &StoreFixture, permits: u32, limit: u32) -> AcquireCommand {
    with_mode(
        store_fixture.waiting_call(),
        Mode::Semaphore { permits, limit },
    )
}

async fn acquire_permits(store_fixture: &StoreFixture, permits: u32, limit: u32) -> LeaseRef {
    store_fixture
        .expect_granted(0, &permits_call(store_fixture, permits, limit))
        .await
}

pub async fn t24_a_set_limit_overrides_that_of_callers(store_fixture: &StoreFixture) {
    assert_eq!(store_fixture.set_limit(0, 2).await, None);
    acquire_permits(store_fixture, 1, 5).await;
    acquire_permits(store_fixture, 1, 0).await;
    store_fixture
        .expect_held(0, &permits_call(store_fixture, 1, 5))
        .await;
    assert_eq!(
        store_fixture
            .expect_limit_mismatch(0, &permits_call(store_fixture, 3, 5))
            .await,
        Some(2)
    );
}

pub async fn t24_shrinking_stops_grants_until_enough_have_left(store_fixture: &StoreFixture) {
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(acquire_permits(store_fixture, 1, 5).await);
    }
    let waits = waiting_permits_call(store_fixture, 1, 5);
    store_fixture.expect_queued(0, &waits).await;
    assert_eq!(store_fixture.set_limit(1, 2).await, Some(5));
    for lease in &held {
        store_fixture.expect_renewed(0, lease).await;
    }
    for lease in &held[..3] {
        store_fixture.expect_released(0, lease).await;
        assert_eq!(store_fixture.expect_state().await.queue_length, 1);
    }
    store_fixture.expect_released(0, &held[3]).await;
    store_fixture.claim_next_hand_off(0, &waits).await;
    store_fixture
        .expect_held(0, &permits_call(store_fixture, 1, 0))
        .await;
}

pub async fn t24_growing_admits_waiters_at_once(store_fixture: &StoreFixture) {
    acquire_permits(store_fixture, 2, 2).await;
    let (here, there) = (
        waiting_permits_call(store_fixture, 1, 2),
        waiting_permits_call(store_fixture, 2, 2),
    );
    store_fixture.expect_queued(0, &here).await;
    store_fixture.expect_queued(1, &there).await;
    assert_eq!(store_fixture.set_limit(0, 5).await, Some(2));
    store_fixture.claim_next_hand_off(0, &here).await;
    store_fixture.claim_next_hand_off(1, &there).await;
    assert_eq!(store_fixture.expect_state().await.queue_length, 0);
}

pub async fn t24_waiters_that_can_never_fit_are_refused(store_fixture: &StoreFixture) {
    let held = acquire_permits(store_fixture, 5, 5).await;
    let (light, heavy) = (
        waiting_permits_call(store_fixture, 1, 5),
        waiting_permits_call(store_fixture, 4, 5),
    );
    let behind = waiting_permits_call(store_fixture, 2, 5);
    store_fixture.expect_queued(0, &light).await;
    store_fixture.expect_queued(1, &heavy).await;
    store_fixture.expect_queued(2, &behind).await;
    store_fixture.set_limit(0, 3).await;
    store_fixture.wait_for_rejoin(1).await;
    assert_eq!(
        store_fixture
            .expect_limit_mismatch(0, &new_attempt(&heavy))
            .await,
        Some(3)
    );
    assert_eq!(store_fixture.expect_state().await.queue_length, 2);
    store_fixture.expect_released(0, &held).await;
    store_fixture.claim_next_hand_off(0, &light).await;
    store_fixture.claim_next_hand_off(2, &behind).await;
}

/// The message that a limit was lowered may be lost. A touch then asks the broker to repeat its
/// calls, also if another broker granted the lock to a waiter behind the one that can never fit.
pub async fn a_waiter_that_can_never_fit_is_found_by_touch(store_fixture: &StoreFixture) {
    let held = acquire_permits(store_fixture, 5, 5).await;
    let heavy = waiting_permits_call(store_fixture, 4, 5);
    let (light, wide) = (
        waiting_permits_call(store_fixture, 1, 5),
        waiting_permits_call(store_fixture, 3, 5),
    );
    for call in [&heavy, &light, &wide] {
        store_fixture.expect_queued(1, call).await;
    }
    store_fixture.set_limit(0, 3).await;
    store_fixture.expect_released(0, &held).await;
    store_fixture.claim_next_hand_off(1, &light).await;
    assert!(store_fixture.touch(1).await.rejoin);
    assert_eq!(
        store_fixture
            .expect_limit_mismatch(1, &new_attempt(&heavy))
            .await,
        Some(3)
    );
    store_fixture.expect_queued(1, &new_attempt(&wide)).await;
    assert!(!store_fixture.touch(1).await.rejoin);
}

pub async fn t24_a_repeat_never_checks_a_set_limit(store_fixture: &StoreFixture) {
    let call = permits_call(store_fixture, 4, 5);
    let held = store_fixture.expect_granted(0, &call).await;
    store_fixture.set_limit(0, 1).await;
    assert_eq!(
        store_fixture.expect_granted(1, &new_attempt(&call)).await,
        held
    );
}

pub async fn a_set_limit_keeps_other_kinds_of_lock_out(store_fixture: &StoreFixture) {
    store_fixture.set_limit(0, 3).await;
    assert_eq!(
        store_fixture
            .expect_limit_mismatch(0, &store_fixture.call())
            .await,
        Some(3)
    );
    let reader = with_mode(store_fixture.waiting_call(), Mode::Shared);
    assert_eq!(
        store_fixture.expect_limit_mismatch(0, &reader).await,
        Some(3)
    );
}

pub async fn a_limit_is_not_set_on_another_kind_of_lock_in_use(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let set = store_fixture
        .store(0)
        .set_limit(&store_fixture.lock, Some(3))
        .await;
    assert_eq!(set, Ok(LimitSet::Mismatch));
    store_fixture.expect_released(0, &held).await;
    assert_eq!(store_fixture.set_limit(0, 3).await, None);
}

pub async fn a_set_limit_may_be_set_again(store_fixture: &StoreFixture) {
    assert_eq!(store_fixture.set_limit(0, 3).await, None);
    assert_eq!(store_fixture.set_limit(1, 7).await, Some(3));
    acquire_permits(store_fixture, 7, 0).await;
}

pub async fn a_set_limit_is_kept_until_it_is_removed(store_fixture: &StoreFixture) {
    const WEEK_MS: u64 = 7 * 24 * 3_600_000;
    store_fixture.set_limit(0, 2).await;
    store_fixture.advance_ms(WEEK_MS).await;
    let held = acquire_permits(store_fixture, 1, 5).await;
    store_fixture.expect_released(0, &held).await;
    store_fixture.advance_ms(WEEK_MS).await;
    let larger = permits_call(store_fixture, 3, 5);
    let in_use = store_fixture.expect_limit_mismatch(0, &larger).await;
    assert_eq!(in_use, Some(2));
    let removed = store_fixture.store(1).set_limit(&store_fixture.lock, None);
    assert_eq!(removed.await, Ok(LimitSet::Set { previous: Some(2) }));
    acquire_permits(store_fixture, 3, 5).await;
}

pub async fn an_idle_lock_whose_limit_was_removed_is_forgotten(store_fixture: &StoreFixture) {
    store_fixture.set_limit(0, 2).await;
    let held = acquire_permits(store_fixture, 1, 2).await;
    store_fixture.expect_released(0, &held).await;
    let removed = store_fixture.store(1).set_limit(&store_fixture.lock, None);
    assert_eq!(removed.await, Ok(LimitSet::Set { previous: Some(2) }));
    store_fixture
        .advance_ms(IDLE_RECORD_TTL_MS + 10 * SLACK_MS)
        .await;
    let state = store_fixture.store(0).get(&store_fixture.lock).await;
    assert_eq!(state, Ok(None));
}

pub async fn a_limit_is_not_set_on_a_lock_that_is_waited_for_exclusively(
    store_fixture: &StoreFixture,
) {
    let reader = with_mode(store_fixture.call(), Mode::Shared);
    store_fixture
        .expect_granted(0, &with_hold_and_delay(reader, 0, DELAY_MS))
        .await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(0, &waiter).await;
    for _ in 0..2 {
        let set = store_fixture
            .store(1)
            .set_limit(&store_fixture.lock, Some(3))
            .await;
        assert_eq!(set, Ok(LimitSet::Mismatch));
        // The reader's lock_delay now closes the lock: no lease holds it.
        store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    }
    assert_eq!(store_fixture.expect_state().await.queue_length, 1);
}

pub async fn a_removed_limit_lets_other_kinds_of_lock_in(store_fixture: &StoreFixture) {
    store_fixture.set_limit(0, 3).await;
    assert_eq!(store_fixture.remove_limit(1).await, Some(3));
    assert_eq!(store_fixture.remove_limit(0).await, None);
    let held = store_fixture.acquire_long(0).await;
    store_fixture.expect_released(0, &held).await;
    acquire_permits(store_fixture, 7, 7).await;
}

pub async fn a_removed_limit_stays_in_use_until_the_lock_is_idle(store_fixture: &StoreFixture) {
    store_fixture.set_limit(0, 2).await;
    let held = acquire_permits(store_fixture, 1, 5).await;
    let waits = waiting_permits_call(store_fixture, 2, 5);
    store_fixture.expect_queued(1, &waits).await;
    assert_eq!(store_fixture.remove_limit(0).await, Some(2));
    assert_eq!(
        store_fixture
            .expect_limit_mismatch(0, &permits_call(store_fixture, 1, 5))
            .await,
        Some(2)
    );
    assert_eq!(
        store_fixture
            .expect_limit_mismatch(0, &store_fixture.call())
            .await,
        Some(2)
    );
    store_fixture.expect_released(0, &held).await;
    let next = store_fixture.claim_next_hand_off(1, &waits).await;
    store_fixture.expect_released(1, &next).await;
    acquire_permits(store_fixture, 5, 5).await;
}

pub async fn removing_a_limit_that_is_not_set_changes_nothing(store_fixture: &StoreFixture) {
    assert_eq!(store_fixture.remove_limit(0).await, None);
    assert_eq!(store_fixture.get().await, None);
    let held = store_fixture.acquire_long(0).await;
    assert_eq!(store_fixture.remove_limit(0).await, None);
    store_fixture.expect_renewed(0, &held).await;
    store_fixture.expect_held(0, &store_fixture.call()).await;
}

async fn permit_usage(store_fixture: &StoreFixture) -> Option<PermitUsage> {
    store_fixture.get().await?.permit_usage
}

pub async fn the_limit_and_the_used_permits_are_shown(store_fixture: &StoreFixture) {
    let usage = |limit, used, is_limit_set| {
        Some(PermitUsage {
            limit,
            used,
            is_limit_set,
        })
    };
    store_fixture.set_limit(0, 3).await;
    assert_eq!(permit_usage(store_fixture).await, usage(3, 0, true));
    let held = acquire_permits(store_fixture, 2, 9).await;
    assert_eq!(permit_usage(store_fixture).await, usage(3, 2, true));
    store_fixture.set_limit(0, 1).await;
    assert_eq!(permit_usage(store_fixture).await, usage(1, 2, true));
    store_fixture.remove_limit(0).await;
    assert_eq!(permit_usage(store_fixture).await, usage(1, 2, false));
    store_fixture.expect_released(0, &held).await;
    assert_eq!(permit_usage(store_fixture).await, None, "an idle lock");
    store_fixture.acquire_long(0).await;
    assert_eq!(permit_usage(store_fixture).await, None, "an exclusive lock");
}

pub async fn a_hand_off_has_the_limit_in_use(store_fixture: &StoreFixture) {
    store_fixture.set_limit(0, 2).await;
    let held = acquire_permits(store_fixture, 2, 9).await;
    let (here, there) = (
        waiting_permits_call(store_fixture, 1, 9),
        waiting_permits_call(store_fixture, 1, 9),
    );
    store_fixture.expect_queued(0, &here).await;
    store_fixture.expect_queued(1, &there).await;
    store_fixture.expect_released(0, &held).await;
    for (broker, call) in [(0, &here), (1, &there)] {
        let hand_off = store_fixture.next_hand_off(broker, call).await;
        assert_eq!(hand_off.limit, 2, "broker {broker}");
    }
}
