//! The line before a lock: its order, its end and its limit.

use futures::stream::{StreamExt as _, iter};
use leasehold_server::{
    lock::{Acquire, CLAIM_MS, WAITERS_MAX, expiry_ms},
    store::{Acquired, Cancelled},
};

use crate::world::{SLACK_MS, TTL_MS, World, assert_left, only};

const AT_ONCE: usize = 64;

pub async fn waiters_of_all_brokers_stand_in_one_line(world: &World) {
    let mut lease = world.held_by(0).await;
    let waiters: Vec<Acquire> = (0..8).map(|_| world.waiting()).collect();
    for (i, waiter) in waiters.iter().enumerate() {
        world.queued(i * 3 % 4, waiter).await;
    }
    for (i, waiter) in waiters.iter().enumerate() {
        world.release(0, &lease).await;
        lease = world.handed(i * 3 % 4, waiter).await;
    }
    assert_eq!(world.state().await.queue_length, 0);
}

pub async fn a_call_that_leaves_does_not_change_the_order_of_the_others(world: &World) {
    let mut lease = world.held_by(0).await;
    let waiters = [(); 5].map(|()| world.waiting());
    for waiter in &waiters {
        world.queued(1, waiter).await;
    }
    assert_eq!(world.cancel(1, &waiters[0]).await, Cancelled::Dequeued);
    assert_eq!(world.cancel(1, &waiters[2]).await, Cancelled::Dequeued);
    for i in [1, 3, 4] {
        world.release(1, &lease).await;
        lease = world.handed(1, &waiters[i]).await;
    }
}

pub async fn a_call_that_does_not_wait_finds_a_free_lock_with_a_line_held(world: &World) {
    world.granted(0, &world.call()).await;
    world.queued(1, &world.waiting()).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    let Acquired::Held(contention) = world.acquire(2, &world.call()).await else {
        panic!("passed the line");
    };
    assert_eq!(
        (only(contention.holders), contention.queue_length),
        (None, 1)
    );
}

pub async fn a_free_lock_without_a_line_is_granted_at_once_to_who_would_wait(world: &World) {
    world.granted(0, &world.waiting()).await;
    assert_eq!(world.state().await.queue_length, 0);
}

pub async fn a_waiter_is_told_when_the_lock_may_become_free(world: &World) {
    world.granted(0, &world.call()).await;
    let next_event_ms = world.queued(1, &world.waiting()).await;
    assert_left(next_event_ms, expiry_ms(TTL_MS));
}

pub async fn a_waiter_behind_a_provisional_grant_is_told_when_that_lapses(world: &World) {
    let lease = world.held_by(0).await;
    world.queued(1, &world.waiting()).await;
    world.release(0, &lease).await;
    let next_event_ms = world.queued(2, &world.waiting()).await;
    assert_left(next_event_ms, CLAIM_MS);
}

pub async fn a_holder_that_expires_is_followed_by_the_first_in_line(world: &World) {
    world.granted(0, &world.call()).await;
    let (first, second) = (world.waiting(), world.waiting());
    world.queued(1, &first).await;
    world.queued(2, &second).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    world.touch(2).await;
    world.handed(1, &first).await;
}

pub async fn waiters_past_their_time_make_room_for_others(world: &World) {
    let lease = world.held_by(0).await;
    for _ in 0..20 {
        world.queued(1, &world.waiting_for(1_000)).await;
    }
    let patient = world.waiting();
    world.queued(2, &patient).await;
    world.advance_ms(expiry_ms(1_000)).await;
    world.release(0, &lease).await;
    world.handed(2, &patient).await;
    assert_eq!(world.state().await.queue_length, 0);
}

pub async fn a_release_reaches_a_waiter_behind_hundreds_past_their_time(world: &World) {
    let lease = world.held_by(0).await;
    for _ in 0..600 {
        world.queued(1, &world.waiting_for(30_000)).await;
    }
    let (far, near) = (world.waiting(), world.waiting());
    world.queued(1, &far).await;
    world.queued(0, &near).await;
    world.advance_ms(expiry_ms(30_000)).await;
    world.release(0, &lease).await;
    let lease = world.handed(1, &far).await;
    assert_eq!(world.state().await.queue_length, 1);
    world.release(1, &lease).await;
    world.handed(0, &near).await;
}

pub async fn an_expiry_reaches_a_waiter_behind_hundreds_past_their_time(world: &World) {
    world.granted(0, &world.call()).await;
    for _ in 0..600 {
        world.queued(1, &world.waiting_for(TTL_MS)).await;
    }
    let waiter = world.waiting();
    world.queued(0, &waiter).await;
    world.advance_ms(expiry_ms(TTL_MS) + SLACK_MS).await;
    world.touch(0).await;
    let holder = only(world.state().await.holders).expect("granted by the touch");
    assert_eq!(holder.lease_id, waiter.lease_id);
}

pub async fn t37_the_line_has_an_end_and_a_full_one_refuses(world: &World) {
    let lease = world.held_by(0).await;
    let first = world.waiting();
    world.queued(1, &first).await;
    let others: Vec<_> = (1..WAITERS_MAX).map(|_| world.waiting()).collect();
    let joined = iter(&others).map(|waiter| world.queued(1, waiter));
    joined.buffer_unordered(AT_ONCE).count().await;
    let refused = world.waiting();
    assert_eq!(world.acquire(1, &refused).await, Acquired::QueueFull);
    assert_eq!(
        world.acquire(2, &world.waiting()).await,
        Acquired::QueueFull
    );
    let no_wait = world.acquire(2, &world.call()).await;
    assert!(matches!(no_wait, Acquired::Held(_)), "{no_wait:?}");
    world.queued(1, &crate::world::again(&first)).await;
    assert_eq!(world.cancel(1, &refused).await, Cancelled::Unknown);
    world.release(1, &lease).await;
    world.handed(1, &first).await;
    world.queued(2, &world.waiting()).await;
    assert_eq!(world.state().await.queue_length, WAITERS_MAX);
}

/// By the clock of its broker, which may run slower than the store's by a fifth, it waits still.
pub async fn a_waiter_is_granted_within_the_clock_tolerance_after_its_wait(world: &World) {
    let lease = world.held_by(0).await;
    let waiter = world.waiting_for(5_000);
    world.queued(1, &waiter).await;
    world.advance_ms(5_500).await;
    world.release(0, &lease).await;
    world.handed(1, &waiter).await;
}

/// The broker ends the wait in time; by its clock, which may run slower, it can take a fifth longer.
pub async fn a_waiter_is_not_granted_after_its_wait_and_the_clock_tolerance(world: &World) {
    let lease = world.held_by(0).await;
    let waiter = world.waiting_for(5_000);
    world.queued(1, &waiter).await;
    world.advance_ms(5_000 - SLACK_MS).await;
    assert_eq!(world.state().await.waiters.len(), 1);
    world.advance_ms(SLACK_MS).await;
    assert_eq!(world.state().await.waiters, []);
    world.advance_ms(expiry_ms(5_000) - 5_000).await;
    world.release(1, &lease).await;
    assert_eq!(only(world.state().await.holders), None);
}
