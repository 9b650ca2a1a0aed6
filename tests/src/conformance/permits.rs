//! Semaphores: holders take permits out of a limit, in the order of the line.

use leasehold_server::{
    lock::{Acquire, LeaseRef, Mode, WHOLE, expiry_ms},
    store::{Acquired, Renewed},
};

use crate::world::{SLACK_MS, TTL_MS, World, again, only, with_mode, with_ttl};

const LIMIT: u32 = 5;

fn permits(permits: u32, limit: u32) -> Mode {
    Mode::Semaphore { permits, limit }
}

fn taking(world: &World, count: u32) -> Acquire {
    with_mode(world.call(), permits(count, LIMIT))
}

fn waiting_for(world: &World, count: u32) -> Acquire {
    with_mode(world.waiting(), permits(count, LIMIT))
}

/// A holder of so many permits who stays.
async fn holds(world: &World, count: u32) -> LeaseRef {
    let call = with_ttl(taking(world, count), 60_000);
    world.granted(0, &call).await
}

pub async fn permits_are_granted_up_to_the_limit(world: &World) {
    let two = holds(world, 2).await;
    holds(world, 3).await;
    world.refused(0, &taking(world, 1)).await;
    world.release(0, &two).await;
    holds(world, 1).await;
    holds(world, 1).await;
    world.refused(0, &taking(world, 1)).await;
}

pub async fn t25_a_heavy_call_at_the_head_is_passed_by_no_light_one(world: &World) {
    let two = holds(world, 2).await;
    let other = holds(world, 2).await;
    let heavy = waiting_for(world, 4);
    world.queued(0, &heavy).await;
    world.refused(0, &taking(world, 1)).await;
    let light = waiting_for(world, 1);
    world.queued(0, &light).await;
    world.release(0, &two).await;
    assert_eq!(world.state().await.queue_length, 2);
    world.release(0, &other).await;
    world.handed(0, &heavy).await;
    world.handed(0, &light).await;
    assert_eq!(world.state().await.queue_length, 0);
}

pub async fn t25_one_release_admits_all_that_fit(world: &World) {
    let all = holds(world, 5).await;
    let (two, three, one) = (
        waiting_for(world, 2),
        waiting_for(world, 3),
        waiting_for(world, 1),
    );
    world.queued(0, &two).await;
    world.queued(1, &three).await;
    world.queued(0, &one).await;
    world.release(0, &all).await;
    world.handed(0, &two).await;
    world.handed(1, &three).await;
    let state = world.state().await;
    assert_eq!((state.holder_count, state.queue_length), (2, 1));
}

pub async fn t23_permits_of_a_dead_holder_come_back(world: &World) {
    let dead = world.granted(0, &taking(world, 3)).await;
    let live = holds(world, 2).await;
    let waits = waiting_for(world, 3);
    world.queued(1, &waits).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    let told = only(world.touch(1).await.held).expect("its turn");
    assert_eq!(told.request, waits.request);
    assert_eq!(world.renew(0, &dead).await, Renewed::Expired);
    world.renewed(0, &live).await;
}

pub async fn t23_another_limit_is_a_mismatch(world: &World) {
    let held = holds(world, 1).await;
    let other = with_mode(world.call(), permits(1, LIMIT + 1));
    assert_eq!(world.mismatch(0, &other).await, LIMIT);
    let waits = with_mode(world.waiting(), permits(1, LIMIT - 1));
    assert_eq!(world.mismatch(0, &waits).await, LIMIT);
    assert_eq!(world.state().await.queue_length, 0);
    world.release(0, &held).await;
    world.granted(0, &other).await;
}

pub async fn a_limit_of_zero_takes_the_one_in_use(world: &World) {
    holds(world, 3).await;
    let any = with_mode(world.call(), permits(2, 0));
    world.granted(0, &any).await;
    let refused = world
        .acquire(0, &with_mode(world.call(), permits(1, 0)))
        .await;
    assert!(matches!(refused, Acquired::Held(_)), "{refused:?}");
    let shown = world.state().await.holders.into_iter();
    let shown: Vec<_> = shown.map(|held| held.mode).collect();
    assert_eq!(shown, [permits(3, LIMIT), permits(2, LIMIT)]);
}

pub async fn a_limit_of_zero_needs_one_in_use(world: &World) {
    let any = with_mode(world.call(), permits(1, 0));
    assert_eq!(world.mismatch(0, &any).await, 0);
    assert_eq!(world.get().await, None);
}

pub async fn more_permits_than_the_limit_in_use_are_a_mismatch(world: &World) {
    holds(world, 1).await;
    let greedy = with_mode(world.waiting(), permits(LIMIT + 1, 0));
    assert_eq!(world.mismatch(0, &greedy).await, LIMIT);
}

pub async fn a_lock_in_use_is_one_kind_of_lock(world: &World) {
    let semaphore = holds(world, 1).await;
    assert_eq!(world.mismatch(0, &world.call()).await, LIMIT);
    let shared = with_mode(world.waiting(), Mode::Shared);
    assert_eq!(world.mismatch(0, &shared).await, LIMIT);
    world.release(0, &semaphore).await;
    world.granted(0, &shared).await;
    assert_eq!(world.mismatch(0, &taking(world, 1)).await, WHOLE);
    let any = with_mode(world.call(), permits(1, 0));
    assert_eq!(world.mismatch(0, &any).await, WHOLE);
}

pub async fn a_line_keeps_the_limit_in_use(world: &World) {
    let held = holds(world, 5).await;
    let waits = waiting_for(world, 1);
    world.queued(1, &waits).await;
    world.release(0, &held).await;
    let other = with_mode(world.call(), permits(1, LIMIT + 1));
    assert_eq!(world.mismatch(0, &other).await, LIMIT);
    world.handed(1, &waits).await;
}

pub async fn a_repeat_never_checks_the_limit(world: &World) {
    let call = taking(world, 5);
    let held = world.granted(0, &call).await;
    let other = with_mode(again(&call), permits(5, LIMIT + 4));
    assert_eq!(world.granted(0, &other).await, held);
    let waits = waiting_for(world, 1);
    world.queued(0, &waits).await;
    world
        .queued(0, &with_mode(again(&waits), permits(1, LIMIT + 4)))
        .await;
}

pub async fn renewals_keep_the_permits(world: &World) {
    let held = world.granted(0, &taking(world, 4)).await;
    for _ in 0..4 {
        world.advance_ms(expiry_ms(TTL_MS) - 2 * SLACK_MS).await;
        world.renewed(0, &held).await;
    }
    world.refused(0, &taking(world, 2)).await;
    holds(world, 1).await;
}

pub async fn slots_that_became_free_are_used_again(world: &World) {
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(holds(world, 1).await);
    }
    for index in [1, 3, 0] {
        world.release(0, &held[index]).await;
    }
    let new = holds(world, 2).await;
    for lease in [&held[2], &held[4], &new] {
        world.renewed(0, lease).await;
    }
    assert_eq!(world.renew(0, &held[3]).await, Renewed::Released);
    let last = holds(world, 1).await;
    world.renewed(0, &last).await;
    world.refused(0, &taking(world, 1)).await;
    assert_eq!(world.state().await.holder_count, 4);
}
