//! Cancelling: an attempt takes back itself and nothing else.

use leasehold_server::{
    lock::{ATTEMPTS_MAX, Acquire, Release, TOMBSTONE_MS, Via},
    store::{Acquired, Cancelled, Released, Renewed},
};

use crate::world::{SLACK_MS, World, added_to, again};

pub async fn cancelling_an_older_attempt_keeps_the_newer_in_line(world: &World) {
    let lease = world.held_by(0).await;
    let first = world.waiting();
    let second = again(&first);
    world.queued(1, &first).await;
    world.queued(2, &second).await;
    assert_eq!(world.cancel(1, &first).await, Cancelled::Kept);
    world.release(0, &lease).await;
    world.handed(2, &second).await;
}

pub async fn cancelling_the_newest_attempt_gives_the_waiter_back_to_the_older(world: &World) {
    let lease = world.held_by(0).await;
    let first = world.waiting();
    let second = again(&first);
    world.queued(1, &first).await;
    world.queued(2, &second).await;
    assert_eq!(world.cancel(2, &second).await, Cancelled::Kept);
    world.release(0, &lease).await;
    world.handed(1, &first).await;
}

pub async fn cancelling_one_attempt_of_a_holder_keeps_the_lock(world: &World) {
    let first = world.call();
    let second = again(&first);
    let lease = world.granted(0, &first).await;
    world.granted(1, &second).await;
    assert_eq!(world.cancel(0, &first).await, Cancelled::Kept);
    world.renewed(1, &lease).await;
}

pub async fn cancelling_the_last_attempt_of_a_holder_hands_the_lock_on(world: &World) {
    let call = world.call();
    let lease = world.granted(0, &call).await;
    let waiter = world.waiting();
    world.queued(1, &waiter).await;
    assert_eq!(world.cancel(0, &call).await, Cancelled::Freed);
    world.handed(1, &waiter).await;
    assert_eq!(world.renew(0, &lease).await, Renewed::NotFound);
}

pub async fn cancelling_the_last_attempt_of_a_waiter_empties_its_place(world: &World) {
    world.held_by(0).await;
    let waiter = world.waiting();
    world.queued(1, &waiter).await;
    assert_eq!(world.cancel(1, &waiter).await, Cancelled::Dequeued);
    assert_eq!(world.state().await.queue_length, 0);
}

pub async fn cancelling_an_attempt_twice_removes_it_once(world: &World) {
    world.held_by(0).await;
    let first = world.waiting();
    world.queued(1, &first).await;
    world.queued(1, &again(&first)).await;
    assert_eq!(world.cancel(1, &first).await, Cancelled::Kept);
    assert_eq!(world.cancel(1, &first).await, Cancelled::Kept);
    assert_eq!(world.state().await.queue_length, 1);
}

pub async fn an_attempt_that_arrives_twice_counts_once(world: &World) {
    let call = world.call();
    world.granted(0, &call).await;
    world.granted(0, &call).await;
    assert_eq!(world.cancel(0, &call).await, Cancelled::Freed);
}

pub async fn an_attempt_cancelled_before_it_arrived_is_refused(world: &World) {
    let call = world.call();
    assert_eq!(world.cancel(0, &call).await, Cancelled::Unknown);
    assert_eq!(world.acquire(0, &call).await, Acquired::Cancelled);
    world.granted(1, &world.call()).await;
}

pub async fn an_attempt_cancelled_before_it_arrived_does_not_join_the_line(world: &World) {
    world.held_by(0).await;
    let call = world.waiting();
    assert_eq!(world.cancel(1, &call).await, Cancelled::Unknown);
    assert_eq!(world.acquire(1, &call).await, Acquired::Cancelled);
    assert_eq!(world.state().await.queue_length, 0);
}

pub async fn a_tombstone_refuses_its_own_attempt_only(world: &World) {
    let call = world.call();
    world.cancel(0, &call).await;
    let lease = world.granted(1, &again(&call)).await;
    assert_eq!(world.acquire(0, &call).await, Acquired::Cancelled);
    world.renewed(1, &lease).await;
}

pub async fn a_tombstone_stands_for_two_seconds(world: &World) {
    let call = world.call();
    world.cancel(0, &call).await;
    world.advance_ms(TOMBSTONE_MS - SLACK_MS).await;
    assert_eq!(world.acquire(0, &call).await, Acquired::Cancelled);
    world.advance_ms(SLACK_MS).await;
    world.granted(0, &call).await;
}

pub async fn cancelling_nine_repeats_of_a_granted_call_keeps_its_lease(world: &World) {
    let call = world.call();
    let lease = world.granted(0, &call).await;
    let repeats: Vec<Acquire> = (0..=ATTEMPTS_MAX).map(|_| again(&call)).collect();
    for repeat in &repeats {
        world.granted(1, repeat).await;
    }
    for repeat in &repeats {
        assert_eq!(world.cancel(1, repeat).await, Cancelled::Kept);
    }
    world.renewed(0, &lease).await;
    world.release(0, &lease).await;
    world.granted(2, &world.call()).await;
}

pub async fn cancelling_nine_repeats_of_a_granted_entry_keeps_the_entry(world: &World) {
    let outer = world.held_by(0).await;
    let entry = added_to(&outer, world.call());
    world.granted(0, &entry).await;
    let repeats: Vec<Acquire> = (0..=ATTEMPTS_MAX).map(|_| again(&entry)).collect();
    for repeat in &repeats {
        world.granted(1, repeat).await;
    }
    for repeat in &repeats {
        world.cancel(1, repeat).await;
    }
    let left = world
        .store(0)
        .release(&outer, Release::Entry(entry.request), Via::Anywhere);
    assert_eq!(left.await, Ok(Released::Now { hold_count: 1 }));
}

pub async fn a_ninth_queued_attempt_is_refused_and_the_other_eight_stay_queued(world: &World) {
    let lease = world.held_by(0).await;
    let call = world.waiting();
    let attempts: Vec<Acquire> = (0..ATTEMPTS_MAX).map(|_| again(&call)).collect();
    for attempt in &attempts {
        world.queued(1, attempt).await;
    }
    let ninth = again(&call);
    assert_eq!(world.acquire(1, &ninth).await, Acquired::TooManyAttempts);
    world.queued(1, &attempts[0]).await;
    assert_eq!(world.cancel(1, &ninth).await, Cancelled::Kept);
    for attempt in &attempts[1..] {
        assert_eq!(world.cancel(1, attempt).await, Cancelled::Kept);
    }
    world.queued(1, &again(&call)).await;
    world.release(0, &lease).await;
    world.handed(1, &call).await;
}

pub async fn attempts_at_a_broker_that_is_gone_do_not_count_towards_the_limit(world: &World) {
    let lease = world.held_by(0).await;
    let call = world.waiting();
    for _ in 0..ATTEMPTS_MAX {
        world.queued(1, &again(&call)).await;
    }
    world.queued(2, &world.waiting()).await;
    world.pass_ms(13_500, &[2]).await;
    world.queued(2, &again(&call)).await;
    world.release(0, &lease).await;
    world.handed(2, &call).await;
}

pub async fn a_cancelled_call_may_come_again(world: &World) {
    let call = world.call();
    let first = world.granted(0, &call).await;
    world.cancel(0, &call).await;
    let second = world.granted(0, &again(&call)).await;
    assert!(second.fencing_token > first.fencing_token);
}
