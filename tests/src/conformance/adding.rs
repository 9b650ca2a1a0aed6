//! A lock that is added to a lease: a grant like any other, under an id that is there already.

use leasehold_server::{
    lock::{Acquire, LeaseRef, Mode, RELEASED_MAX, TOMBSTONE_MS, expiry_ms},
    store::{Acquired, Cancelled, Released, Renewed},
};

use crate::world::{
    SLACK_MS, TTL_MS, World, added_to, again, lease, lock_named, only, with_mode, with_ttl,
};

/// A lease on another lock.
async fn elsewhere(world: &World) -> LeaseRef {
    let mut call = with_ttl(world.call(), 60_000);
    call.lock = lock_named("default", "another lock");
    world.granted(0, &call).await
}

/// Two calls of one lease, whose line has just begun to move: the first has been handed the lock.
async fn two_in_line(world: &World) -> [Acquire; 2] {
    let other = elsewhere(world).await;
    let held = world.held_by(0).await;
    let calls = [(); 2].map(|()| added_to(&other, world.waiting()));
    world.queued(1, &calls[0]).await;
    world.queued(2, &calls[1]).await;
    world.release(0, &held).await;
    calls
}

fn adds(world: &World, to: &LeaseRef) -> Acquire {
    added_to(to, world.call())
}

pub async fn an_added_lock_is_held_under_the_same_lease(world: &World) {
    let other = elsewhere(world).await;
    let call = adds(world, &other);
    let added = world.granted(0, &call).await;
    assert_eq!(added.lease_id, other.lease_id);
    world.renewed(0, &added).await;
    world.renewed(0, &other).await;
    world.release(0, &other).await;
    world.renewed(0, &added).await;
    let holder = only(world.state().await.holders).expect("held");
    assert_eq!(holder.lease_id, other.lease_id);
}

pub async fn an_added_lock_is_waited_for_in_line(world: &World) {
    let other = elsewhere(world).await;
    let held = world.held_by(0).await;
    world.refused(0, &adds(world, &other)).await;
    let call = added_to(&other, world.waiting());
    world.queued(1, &call).await;
    world.release(0, &held).await;
    let added = world.handed(1, &call).await;
    assert_eq!(added.lease_id, other.lease_id);
}

pub async fn a_repeat_of_an_added_lock_gets_the_same_grant(world: &World) {
    let other = elsewhere(world).await;
    let call = adds(world, &other);
    let added = world.granted(0, &call).await;
    assert_eq!(world.granted(1, &again(&call)).await, added);
}

/// A copy of the lease that does not name the lock yet.
pub async fn adding_a_lock_that_the_lease_holds_enters_it(world: &World) {
    let held = world.granted(0, &world.call()).await;
    let entry = adds(world, &held);
    assert_eq!(world.entered(0, &entry).await, 2);
    let holder = only(world.state().await.holders).expect("one holder");
    assert_eq!(holder.fencing_token, held.fencing_token);
}

pub async fn a_released_lock_is_added_again(world: &World) {
    let other = elsewhere(world).await;
    let call = adds(world, &other);
    let first = world.granted(0, &call).await;
    world.release(0, &first).await;
    assert_eq!(world.acquire(0, &again(&call)).await, Acquired::Ended);
    let second = world.granted(0, &adds(world, &other)).await;
    assert!(second.fencing_token > first.fencing_token);
    assert_eq!(world.renew(0, &first).await, Renewed::NotFound);
    world.renewed(0, &second).await;
}

/// However many others were released since: its holder may show the lease as it received it.
pub async fn the_release_of_an_added_lock_is_remembered_until_it_would_have_expired(world: &World) {
    let other = elsewhere(world).await;
    let added = with_ttl(adds(world, &other), 20_000);
    let added = world.granted(0, &added).await;
    let now = Released::Now { hold_count: 0 };
    assert_eq!(world.release_lock(0, &added).await, now);
    for _ in 0..=RELEASED_MAX {
        let lease = world.held_by(1).await;
        world.release(1, &lease).await;
    }
    // The many calls before take their time on a busy machine.
    world.advance_ms(expiry_ms(20_000) - 5 * SLACK_MS).await;
    assert_eq!(world.renew(2, &added).await, Renewed::Released);
    let already = Released::Already { hold_count: 0 };
    assert_eq!(world.release_lock(2, &added).await, already);
    world.advance_ms(5 * SLACK_MS).await;
    assert_eq!(world.renew(2, &added).await, Renewed::NotFound);
}

/// Nobody takes the loss of a lock for the release before.
pub async fn a_lock_that_expires_after_it_was_added_again_is_reported_as_expired(world: &World) {
    let other = elsewhere(world).await;
    let first = world.granted(0, &adds(world, &other)).await;
    world.release_lock(0, &first).await;
    let second = world.granted(0, &adds(world, &other)).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    assert_eq!(world.renew(0, &second).await, Renewed::Expired);
}

pub async fn t21_a_late_copy_of_an_add_whose_lock_was_released_is_refused(world: &World) {
    let other = elsewhere(world).await;
    let call = adds(world, &other);
    let first = world.granted(0, &call).await;
    world.release(0, &first).await;
    for _ in 0..20 {
        let next = world.granted(0, &world.call()).await;
        world.release(0, &next).await;
    }
    assert_eq!(world.acquire(1, &again(&call)).await, Acquired::Ended);
    world.advance_ms(TOMBSTONE_MS).await;
    world.granted(1, &again(&call)).await;
}

pub async fn a_lock_that_expired_is_not_added_again(world: &World) {
    let other = elsewhere(world).await;
    let added = world.granted(0, &adds(world, &other)).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    let reply = world.acquire(0, &adds(world, &other)).await;
    assert_eq!(reply, Acquired::Ended);
    assert_eq!(world.renew(0, &added).await, Renewed::Expired);
}

pub async fn two_adds_of_one_lease_make_one_holder(world: &World) {
    let [first, second] = two_in_line(world).await;
    let added = world.handed(1, &first).await;
    let state = world.state().await;
    assert_eq!((state.holder_count, state.queue_length), (1, 1));
    world.release(1, &added).await;
    let again = world.handed(2, &second).await;
    assert!(again.fencing_token > added.fencing_token);
}

/// It is answered as a new one would be.
pub async fn a_queued_add_enters_the_lock_if_another_add_of_its_lease_was_granted(world: &World) {
    let [first, second] = two_in_line(world).await;
    let added = world.handed(1, &first).await;
    assert_eq!(world.entered(3, &again(&second)).await, 2);
    let state = world.state().await;
    assert_eq!((state.holder_count, state.queue_length), (1, 0));
    assert_eq!(world.cancel(2, &second).await, Cancelled::Kept);
    world.release(1, &added).await;
    world.granted(0, &world.call()).await;
}

pub async fn a_queued_exclusive_add_of_a_lease_that_holds_a_shared_lock_is_denied(world: &World) {
    let other = elsewhere(world).await;
    let held = world.held_by(0).await;
    let reader = with_mode(added_to(&other, world.waiting()), Mode::Shared);
    let writer = added_to(&other, world.waiting());
    world.queued(1, &reader).await;
    world.queued(1, &writer).await;
    world.release(0, &held).await;
    world.handed(1, &reader).await;
    let denied = world.acquire(1, &again(&writer)).await;
    assert_eq!(denied, Acquired::UpgradeDenied);
    assert_eq!(world.state().await.queue_length, 0);
}

/// Whoever waits behind it, or comes later, is not held up; its broker is told to ask again.
pub async fn a_queued_add_of_a_lease_that_holds_the_lock_blocks_no_other_waiter(world: &World) {
    let shared = |call| with_mode(call, Mode::Shared);
    let other = elsewhere(world).await;
    let held = world.held_by(0).await;
    let calls = [(); 2].map(|()| shared(added_to(&other, world.waiting())));
    let behind = shared(world.waiting());
    world.queued(1, &calls[0]).await;
    world.queued(2, &calls[1]).await;
    world.queued(3, &behind).await;
    world.release(0, &held).await;
    world.handed(1, &calls[0]).await;
    world.handed(3, &behind).await;
    world.granted(0, &shared(world.call())).await;
    assert_eq!(world.state().await.queue_length, 1);
    assert!(!world.touch(1).await.rejoin);
    assert!(world.touch(2).await.rejoin);
    // It keeps the line, and so the brokers that this knows.
    world.queued(2, &world.waiting()).await;
    assert_eq!(world.entered(2, &again(&calls[1])).await, 2);
    assert!(!world.touch(2).await.rejoin);
}

pub async fn an_add_waits_for_a_promise_to_its_own_lease(world: &World) {
    let other = elsewhere(world).await;
    let held = world.held_by(0).await;
    let first = added_to(&other, world.waiting());
    world.queued(1, &first).await;
    world.release(0, &held).await;
    let hand_off = world.hand_off(1, &first).await;
    assert!(hand_off.provisional);
    let second = added_to(&other, world.waiting());
    world.queued(0, &second).await;
    world
        .renewed(1, &lease(&first, hand_off.fencing_token))
        .await;
    assert_eq!(world.state().await.holder_count, 1);
}

pub async fn cancelling_an_add_leaves_the_lease_its_other_locks(world: &World) {
    let other = elsewhere(world).await;
    let call = adds(world, &other);
    world.granted(0, &call).await;
    assert_eq!(world.cancel(0, &call).await, Cancelled::Freed);
    world.renewed(0, &other).await;
    world.granted(1, &world.call()).await;
}
