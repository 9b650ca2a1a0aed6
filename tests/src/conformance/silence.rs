//! Brokers that no longer touch a lock while others do: their waiters must not hold up the line.

use leasehold_server::{lock::expiry_ms, store::Cancelled};

use crate::world::{TTL_MS, World, again, only};

pub async fn waiters_of_a_silent_broker_are_passed_over_and_keep_their_place(world: &World) {
    let held = world.held_by(0).await;
    let (quiet, live) = (world.waiting(), world.waiting());
    world.queued(1, &quiet).await;
    world.queued(2, &live).await;
    world.pass_ms(7_500, &[2]).await;
    world.release(0, &held).await;
    let lease = world.handed(2, &live).await;
    assert_eq!(world.state().await.queue_length, 1);
    world.touch(1).await;
    world.release(2, &lease).await;
    world.handed(1, &quiet).await;
}

pub async fn a_broker_that_touches_is_not_silent(world: &World) {
    let held = world.held_by(0).await;
    let (first, second) = (world.waiting(), world.waiting());
    world.queued(1, &first).await;
    world.queued(2, &second).await;
    world.pass_ms(15_000, &[1, 2]).await;
    world.release(0, &held).await;
    world.handed(1, &first).await;
}

pub async fn a_silent_broker_is_told_to_join_again(world: &World) {
    world.held_by(0).await;
    world.queued(1, &world.waiting()).await;
    world.queued(2, &world.waiting()).await;
    assert!(!world.touch(1).await.rejoin);
    world.pass_ms(7_500, &[2]).await;
    assert!(world.touch(1).await.rejoin);
    assert!(!world.touch(1).await.rejoin);
}

pub async fn a_broker_without_a_place_in_line_is_told_to_join_again(world: &World) {
    world.held_by(0).await;
    world.queued(1, &world.waiting()).await;
    assert!(world.touch(2).await.rejoin);
}

pub async fn a_waiter_that_was_dropped_joins_again_at_the_tail(world: &World) {
    let held = world.held_by(0).await;
    let (dropped, live, later) = (world.waiting(), world.waiting(), world.waiting());
    world.queued(1, &dropped).await;
    world.queued(2, &live).await;
    world.queued(2, &later).await;
    world.pass_ms(13_500, &[2]).await;
    world.release(2, &held).await;
    let lease = world.handed(2, &live).await;
    world.queued(1, &again(&dropped)).await;
    world.release(2, &lease).await;
    let lease = world.handed(2, &later).await;
    world.release(2, &lease).await;
    world.handed(1, &dropped).await;
}

pub async fn a_repeat_at_a_live_broker_saves_the_place_of_a_silent_one(world: &World) {
    let held = world.held_by(0).await;
    let (moved, other) = (world.waiting(), world.waiting());
    world.queued(1, &moved).await;
    world.queued(2, &other).await;
    world.pass_ms(9_000, &[2]).await;
    world.queued(3, &again(&moved)).await;
    world.release(0, &held).await;
    world.handed(3, &moved).await;
}

pub async fn a_queued_call_keeps_its_position_while_one_of_its_brokers_is_alive(world: &World) {
    let held = world.held_by(0).await;
    let (twice, later) = (world.waiting(), world.waiting());
    world.queued(1, &twice).await;
    world.queued(2, &again(&twice)).await;
    world.queued(3, &later).await;
    world.pass_ms(7_500, &[1, 3]).await;
    world.release(0, &held).await;
    let lease = world.handed(1, &twice).await;
    world.release(1, &lease).await;
    world.handed(3, &later).await;
}

pub async fn cancelling_the_last_attempt_at_a_live_broker_releases_the_lock(world: &World) {
    let held = world.held_by(0).await;
    let twice = world.waiting();
    let gone = again(&twice);
    world.queued(1, &twice).await;
    world.queued(2, &gone).await;
    world.pass_ms(13_500, &[1]).await;
    world.release(0, &held).await;
    world.handed(1, &twice).await;
    assert_eq!(world.cancel(1, &twice).await, Cancelled::Freed);
}

pub async fn a_stall_of_the_store_makes_nobody_silent(world: &World) {
    let held = world.held_by(0).await;
    let (first, second) = (world.waiting(), world.waiting());
    world.queued(1, &first).await;
    world.queued(2, &second).await;
    for _ in 0..4 {
        world.advance_ms(10_000).await;
        assert!(!world.touch(2).await.rejoin);
    }
    world.release(0, &held).await;
    world.handed(1, &first).await;
}

pub async fn a_lock_that_expired_in_a_stall_goes_to_the_first_in_line(world: &World) {
    world.granted(0, &world.call()).await;
    let (first, second) = (world.waiting(), world.waiting());
    world.queued(1, &first).await;
    world.queued(2, &second).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    assert_eq!(only(world.touch(2).await.held), None);
    world.handed(1, &first).await;
}

pub async fn a_call_of_a_silent_broker_itself_is_granted(world: &World) {
    let held = world.held_by(0).await;
    let (quiet, live) = (world.waiting(), world.waiting());
    world.queued(1, &quiet).await;
    world.queued(2, &live).await;
    world.pass_ms(7_500, &[2]).await;
    world.release(1, &held).await;
    assert!(!world.hand_off(1, &quiet).await.provisional);
}
