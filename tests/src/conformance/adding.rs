//! A lock that is added to a lease: a grant like any other, under an id that is there already.

use leasehold_server::{
    lock::{Acquire, LeaseRef, TOMBSTONE_MS, expiry_ms},
    store::{Acquired, Cancelled, Renewed},
};

use crate::world::{TTL_MS, World, added_to, again, lease, lock_named, only, with_ttl};

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

pub async fn a_repeat_of_an_add_in_line_keeps_its_place_although_its_lease_holds(world: &World) {
    let [first, second] = two_in_line(world).await;
    let added = world.handed(1, &first).await;
    world.queued(3, &again(&second)).await;
    assert_eq!(world.state().await.queue_length, 1);
    world.release(1, &added).await;
    world.handed(3, &second).await;
    assert_eq!(world.state().await.queue_length, 0);
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
