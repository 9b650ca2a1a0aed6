//! Calls that come again, with the same or with other arguments, here or at another broker.

use leasehold_server::{
    lock::{ArgumentsHash, EXPIRED_MS, RELEASED_MAX, TOMBSTONE_MS, expiry_ms},
    store::{Acquired, Cancelled, Released},
};

use crate::world::{SLACK_MS, TTL_MS, World, again, assert_left, only};

pub async fn a_repeat_of_a_held_call_renews_the_lease(world: &World) {
    let call = world.call();
    world.granted(0, &call).await;
    world.advance_ms(8_000).await;
    world.granted(0, &again(&call)).await;
    let holder = only(world.state().await.holders).expect("held");
    assert_left(holder.remaining_ms, expiry_ms(TTL_MS));
}

pub async fn a_repeat_at_another_broker_gets_the_same_grant(world: &World) {
    let call = world.call();
    let lease = world.granted(0, &call).await;
    assert_eq!(world.granted(1, &again(&call)).await, lease);
    assert_eq!(
        world.release(2, &lease).await,
        Released::Now { hold_count: 0 }
    );
}

pub async fn a_repeat_of_a_held_call_with_other_arguments_is_refused(world: &World) {
    let call = world.call();
    let lease = world.granted(0, &call).await;
    let mut other = again(&call);
    other.arguments = ArgumentsHash::of(&[b"other arguments"]);
    assert_eq!(world.acquire(0, &other).await, Acquired::RequestIdReused);
    assert_eq!(world.cancel(0, &other).await, Cancelled::Kept);
    world.renewed(0, &lease).await;
}

pub async fn a_repeat_of_a_waiting_call_with_other_arguments_is_refused(world: &World) {
    let lease = world.held_by(0).await;
    let call = world.waiting();
    world.queued(1, &call).await;
    let mut other = again(&call);
    other.arguments = ArgumentsHash::of(&[b"other arguments"]);
    assert_eq!(world.acquire(2, &other).await, Acquired::RequestIdReused);
    world.release(0, &lease).await;
    world.handed(1, &call).await;
}

pub async fn a_repeat_by_another_caller_is_refused(world: &World) {
    let call = world.call();
    world.granted(0, &call).await;
    let mut other = again(&call);
    other.lease_id = world.call().lease_id;
    assert_eq!(world.acquire(0, &other).await, Acquired::RequestIdReused);
}

pub async fn a_repeat_of_a_waiting_call_keeps_its_place(world: &World) {
    let lease = world.held_by(0).await;
    let (first, second) = (world.waiting(), world.waiting());
    world.queued(1, &first).await;
    world.queued(1, &second).await;
    world.queued(1, &again(&first)).await;
    assert_eq!(world.state().await.queue_length, 2);
    world.release(0, &lease).await;
    world.handed(1, &first).await;
}

pub async fn a_repeat_at_another_broker_moves_the_waiter_there(world: &World) {
    let lease = world.held_by(0).await;
    let (first, second) = (world.waiting(), world.waiting());
    world.queued(1, &first).await;
    world.queued(1, &second).await;
    world.queued(2, &again(&first)).await;
    world.release(0, &lease).await;
    world.handed(2, &first).await;
}

pub async fn a_repeat_of_a_waiting_call_extends_its_wait(world: &World) {
    let lease = world.held_by(0).await;
    let call = world.waiting_for(3_000);
    world.queued(1, &call).await;
    world.advance_ms(2_000).await;
    world.queued(1, &again(&call)).await;
    world.advance_ms(2_000).await;
    world.release(0, &lease).await;
    world.handed(1, &call).await;
}

pub async fn a_repeat_of_a_waiting_call_never_shortens_its_wait(world: &World) {
    let lease = world.held_by(0).await;
    let call = world.waiting_for(20_000);
    world.queued(1, &call).await;
    let mut shorter = again(&call);
    shorter.wait_ms = 1_000;
    world.queued(1, &shorter).await;
    world.advance_ms(5_000).await;
    world.release(0, &lease).await;
    world.handed(1, &call).await;
}

pub async fn a_repeat_that_does_not_wait_leaves_the_waiter_in_line(world: &World) {
    let lease = world.held_by(0).await;
    let call = world.waiting();
    world.queued(1, &call).await;
    let mut impatient = again(&call);
    impatient.wait_ms = 0;
    let reply = world.acquire(1, &impatient).await;
    assert!(matches!(reply, Acquired::Held(_)), "{reply:?}");
    world.release(0, &lease).await;
    world.handed(1, &call).await;
}

pub async fn a_repeat_after_the_hand_off_gets_the_grant(world: &World) {
    let lease = world.held_by(0).await;
    let call = world.waiting();
    world.queued(0, &call).await;
    world.release(0, &lease).await;
    let told = world.hand_off(0, &call).await;
    let repeated = world.granted(0, &again(&call)).await;
    assert_eq!(repeated.fencing_token, told.fencing_token);
}

pub async fn a_repeat_of_a_waiting_call_is_granted_a_lock_that_became_free(world: &World) {
    world.granted(0, &world.call()).await;
    let call = world.waiting();
    world.queued(1, &call).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    world.granted(1, &again(&call)).await;
    assert_eq!(world.state().await.queue_length, 0);
}

pub async fn a_repeat_after_the_release_is_told_that_the_lease_is_over(world: &World) {
    let call = world.call();
    let lease = world.granted(0, &call).await;
    world.release(0, &lease).await;
    assert_eq!(world.acquire(1, &again(&call)).await, Acquired::Ended);
    assert_eq!(only(world.state().await.holders), None);
}

pub async fn a_repeat_after_the_expiry_is_told_that_the_lease_is_over(world: &World) {
    let call = world.call();
    world.granted(0, &call).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    assert_eq!(world.acquire(1, &again(&call)).await, Acquired::Ended);
    assert_eq!(only(world.state().await.holders), None);
}

pub async fn an_expired_lease_is_remembered_for_a_minute(world: &World) {
    let call = world.call();
    let lease = world.granted(0, &call).await;
    world
        .advance_ms(expiry_ms(TTL_MS) + EXPIRED_MS - SLACK_MS)
        .await;
    assert_eq!(world.release(0, &lease).await, Released::Expired);
    assert_eq!(world.acquire(0, &again(&call)).await, Acquired::Ended);
    world.advance_ms(SLACK_MS).await;
    assert_eq!(world.release(0, &lease).await, Released::NotFound);
    world.granted(0, &again(&call)).await;
}

pub async fn a_released_lease_is_remembered_for_two_seconds_however_many_follow(world: &World) {
    let first = world.granted(0, &world.call()).await;
    world.release(0, &first).await;
    for _ in 0..2 * RELEASED_MAX {
        let lease = world.granted(0, &world.call()).await;
        world.release(0, &lease).await;
    }
    assert_eq!(
        world.release(0, &first).await,
        Released::Already { hold_count: 0 }
    );
    world.advance_ms(TOMBSTONE_MS).await;
    assert_eq!(world.release(0, &first).await, Released::NotFound);
}

pub async fn the_last_sixteen_released_leases_are_remembered_however_old(world: &World) {
    let mut leases = Vec::new();
    for _ in 0..=RELEASED_MAX {
        let lease = world.granted(0, &world.call()).await;
        world.release(0, &lease).await;
        world.advance_ms(TOMBSTONE_MS).await;
        leases.push(lease);
    }
    assert_eq!(world.release(0, &leases[0]).await, Released::NotFound);
    for lease in &leases[1..] {
        assert_eq!(
            world.release(0, lease).await,
            Released::Already { hold_count: 0 }
        );
    }
}
