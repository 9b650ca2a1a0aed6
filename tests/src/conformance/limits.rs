//! SetLockLimit: an operator's limit stands above the callers'.

use leasehold_server::{
    lock::{Acquire, LeaseRef, Mode, SET_KEEP_MS, expiry_ms},
    store::LimitSet,
};

use crate::world::{SLACK_MS, TTL_MS, World, again, with_mode, with_terms, with_ttl};

const DELAY_MS: u64 = 5_000;

fn taking(world: &World, permits: u32, limit: u32) -> Acquire {
    let call = with_ttl(world.call(), 60_000);
    with_mode(call, Mode::Semaphore { permits, limit })
}

fn waiting_for(world: &World, permits: u32, limit: u32) -> Acquire {
    with_mode(world.waiting(), Mode::Semaphore { permits, limit })
}

async fn holds(world: &World, permits: u32, limit: u32) -> LeaseRef {
    world.granted(0, &taking(world, permits, limit)).await
}

pub async fn t24_a_set_limit_overrides_that_of_callers(world: &World) {
    assert_eq!(world.set_limit(0, 2).await, 0);
    holds(world, 1, 5).await;
    holds(world, 1, 0).await;
    world.refused(0, &taking(world, 1, 5)).await;
    assert_eq!(world.mismatch(0, &taking(world, 3, 5)).await, 2);
}

pub async fn t24_shrinking_stops_grants_until_enough_have_left(world: &World) {
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(holds(world, 1, 5).await);
    }
    let waits = waiting_for(world, 1, 5);
    world.queued(0, &waits).await;
    assert_eq!(world.set_limit(1, 2).await, 5);
    for lease in &held {
        world.renewed(0, lease).await;
    }
    for lease in &held[..3] {
        world.release(0, lease).await;
        assert_eq!(world.state().await.queue_length, 1);
    }
    world.release(0, &held[3]).await;
    world.handed(0, &waits).await;
    world.refused(0, &taking(world, 1, 0)).await;
}

pub async fn t24_growing_admits_waiters_at_once(world: &World) {
    holds(world, 2, 2).await;
    let (here, there) = (waiting_for(world, 1, 2), waiting_for(world, 2, 2));
    world.queued(0, &here).await;
    world.queued(1, &there).await;
    assert_eq!(world.set_limit(0, 5).await, 2);
    world.handed(0, &here).await;
    world.handed(1, &there).await;
    assert_eq!(world.state().await.queue_length, 0);
}

pub async fn t24_waiters_that_can_never_fit_are_refused(world: &World) {
    let held = holds(world, 5, 5).await;
    let (light, heavy) = (waiting_for(world, 1, 5), waiting_for(world, 4, 5));
    let behind = waiting_for(world, 2, 5);
    world.queued(0, &light).await;
    world.queued(1, &heavy).await;
    world.queued(2, &behind).await;
    world.set_limit(0, 3).await;
    world.told_to_rejoin(1).await;
    assert_eq!(world.mismatch(0, &again(&heavy)).await, 3);
    assert_eq!(world.state().await.queue_length, 2);
    world.release(0, &held).await;
    world.handed(0, &light).await;
    world.handed(2, &behind).await;
}

pub async fn t24_a_repeat_never_checks_a_set_limit(world: &World) {
    let call = taking(world, 4, 5);
    let held = world.granted(0, &call).await;
    world.set_limit(0, 1).await;
    assert_eq!(world.granted(1, &again(&call)).await, held);
}

pub async fn a_set_limit_keeps_other_kinds_of_lock_out(world: &World) {
    world.set_limit(0, 3).await;
    assert_eq!(world.mismatch(0, &world.call()).await, 3);
    let reader = with_mode(world.waiting(), Mode::Shared);
    assert_eq!(world.mismatch(0, &reader).await, 3);
}

pub async fn a_limit_is_not_set_on_another_kind_of_lock_in_use(world: &World) {
    let held = world.held_by(0).await;
    let set = world.store(0).set_limit(&world.lock, Some(3)).await;
    assert_eq!(set, Ok(LimitSet::Mismatch));
    world.release(0, &held).await;
    assert_eq!(world.set_limit(0, 3).await, 0);
}

pub async fn a_set_limit_may_be_set_again(world: &World) {
    assert_eq!(world.set_limit(0, 3).await, 0);
    assert_eq!(world.set_limit(1, 7).await, 3);
    holds(world, 7, 0).await;
}

pub async fn a_set_limit_is_kept_for_a_day_after_the_last_use(world: &World) {
    world.set_limit(0, 2).await;
    world.advance_ms(SET_KEEP_MS - 10 * SLACK_MS).await;
    let held = holds(world, 1, 5).await;
    world.release(0, &held).await;
    world.advance_ms(SET_KEEP_MS - 10 * SLACK_MS).await;
    assert_eq!(world.mismatch(0, &taking(world, 3, 5)).await, 2);
    world.advance_ms(SET_KEEP_MS + 10 * SLACK_MS).await;
    holds(world, 3, 5).await;
}

pub async fn a_limit_is_not_set_on_a_lock_that_is_waited_for_exclusively(world: &World) {
    let reader = with_mode(world.call(), Mode::Shared);
    world.granted(0, &with_terms(reader, 0, DELAY_MS)).await;
    let waiter = world.waiting();
    world.queued(0, &waiter).await;
    for _ in 0..2 {
        let set = world.store(1).set_limit(&world.lock, Some(3)).await;
        assert_eq!(set, Ok(LimitSet::Mismatch));
        // The reader's lock_delay now closes the lock: no lease holds it.
        world.advance_ms(expiry_ms(TTL_MS)).await;
    }
    assert_eq!(world.state().await.queue_length, 1);
}

pub async fn a_removed_limit_lets_other_kinds_of_lock_in(world: &World) {
    world.set_limit(0, 3).await;
    assert_eq!(world.remove_limit(1).await, 3);
    assert_eq!(world.remove_limit(0).await, 0);
    let held = world.held_by(0).await;
    world.release(0, &held).await;
    holds(world, 7, 7).await;
}

pub async fn a_removed_limit_stays_in_use_until_the_lock_is_idle(world: &World) {
    world.set_limit(0, 2).await;
    let held = holds(world, 1, 5).await;
    let waits = waiting_for(world, 2, 5);
    world.queued(1, &waits).await;
    assert_eq!(world.remove_limit(0).await, 2);
    assert_eq!(world.mismatch(0, &taking(world, 1, 5)).await, 2);
    assert_eq!(world.mismatch(0, &world.call()).await, 2);
    world.release(0, &held).await;
    let next = world.handed(1, &waits).await;
    world.release(1, &next).await;
    holds(world, 5, 5).await;
}

pub async fn removing_a_limit_that_is_not_set_changes_nothing(world: &World) {
    assert_eq!(world.remove_limit(0).await, 0);
    assert_eq!(world.get().await, None);
    let held = world.held_by(0).await;
    assert_eq!(world.remove_limit(0).await, 0);
    world.renewed(0, &held).await;
    world.refused(0, &world.call()).await;
}
