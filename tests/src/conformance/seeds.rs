//! The locks that people write by hand on Redis, each with what it wanted, done here.

use leasehold_server::{
    lock::{FencingToken, expiry_ms},
    store::{Acquired, Released, Renewed},
};

use crate::world::{SLACK_MS, TTL_MS, World, assert_left, only};

/// SETNX + EXPIRE: the holder and its expiry are set in one step.
pub async fn seed_try_lock_takes_lock_and_expiry_in_one_step(world: &World) {
    let call = world.call();
    let lease = world.granted(0, &call).await;
    let holder = only(world.state().await.holders).expect("held");
    assert_eq!(holder.lease_id, call.lease_id);
    assert_eq!(holder.fencing_token, lease.fencing_token);
    assert_left(holder.remaining_ms, expiry_ms(TTL_MS));
}

/// SETNX by a second caller: told at once who is in the way.
pub async fn seed_try_lock_of_a_held_lock_fails_at_once_and_names_the_holder(world: &World) {
    let first = world.call();
    world.granted(0, &first).await;
    let Acquired::Held(contention) = world.acquire(1, &world.call()).await else {
        panic!("two hold it");
    };
    assert_eq!(only(contention.holders).expect("held").owner, first.owner);
    assert_eq!(contention.queue_length, 0);
}

/// The blocking lock: waits in line instead of trying again and again.
pub async fn seed_blocking_lock_is_granted_when_the_holder_releases(world: &World) {
    let lease = world.held_by(0).await;
    let waiter = world.waiting();
    world.queued(1, &waiter).await;
    world.release(0, &lease).await;
    let next = world.handed(1, &waiter).await;
    assert!(next.fencing_token > lease.fencing_token);
}

/// The blocking lock's time-out: who gave up is granted nothing.
pub async fn seed_blocking_lock_is_granted_nothing_after_its_time_out(world: &World) {
    let lease = world.held_by(0).await;
    world.queued(1, &world.waiting_for(5_000)).await;
    world.advance_ms(expiry_ms(5_000)).await;
    world.release(0, &lease).await;
    assert_eq!(only(world.state().await.holders), None);
    world.granted(2, &world.call()).await;
}

/// The lock time-out: a holder that vanished blocks nobody for longer than its expiry.
pub async fn seed_lock_time_out_frees_the_lock(world: &World) {
    world.granted(0, &world.call()).await;
    world.advance_ms(expiry_ms(TTL_MS) - 2 * SLACK_MS).await;
    let early = world.acquire(1, &world.call()).await;
    assert!(matches!(early, Acquired::Held(_)), "{early:?}");
    world.advance_ms(2 * SLACK_MS).await;
    world.granted(1, &world.call()).await;
}

/// EXPIRE while the work goes on: the extended lock outlives its first time-out.
pub async fn seed_lock_extension_moves_the_time_out(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    world.advance_ms(8_000).await;
    world.renewed(0, &lease).await;
    world.advance_ms(8_000).await;
    let reply = world.acquire(1, &world.call()).await;
    assert!(matches!(reply, Acquired::Held(_)), "{reply:?}");
}

/// A crash between SETNX and EXPIRE: a key without TTL is healed by the next command and its lock
/// is granted at the holder's expiry.
pub async fn seed_lock_without_ttl_is_healed(world: &World) {
    world.granted(0, &world.call()).await;
    world.lose_ttl().await;
    let reply = world.acquire(1, &world.call()).await;
    assert!(matches!(reply, Acquired::Held(_)), "{reply:?}");
    world.lose_ttl().await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    world.granted(1, &world.call()).await;
}

/// GETSET with an expired time stamp: of all who see the expiry at once, one gets the lock.
pub async fn seed_getset_race_for_an_expired_lock_has_one_winner(world: &World) {
    for _ in 0..10 {
        let calls = [(); 4].map(|()| world.call());
        world.advance_ms(expiry_ms(TTL_MS)).await;
        let replies = tokio::join!(
            world.acquire(0, &calls[0]),
            world.acquire(1, &calls[1]),
            world.acquire(2, &calls[2]),
            world.acquire(3, &calls[3]),
        );
        let replies = [replies.0, replies.1, replies.2, replies.3];
        let winners = replies.iter().filter(|r| matches!(r, Acquired::Granted(_)));
        assert_eq!(winners.count(), 1, "{replies:?}");
    }
}

/// The compare-and-delete of a UUID: nobody else's release does anything.
pub async fn seed_unlock_only_by_its_holder(world: &World) {
    let call = world.call();
    let lease = world.granted(0, &call).await;
    let stranger = crate::world::lease(&world.call(), lease.fencing_token);
    assert_eq!(world.release(1, &stranger).await, Released::NotFound);
    let holder = only(world.state().await.holders).expect("still held");
    assert_eq!(holder.lease_id, call.lease_id);
    assert_eq!(
        world.release(0, &lease).await,
        Released::Now { hold_count: 0 }
    );
    assert_eq!(only(world.state().await.holders), None);
}

/// The watchdog: a lock renewed every third of its ttl is held for as long as that goes on.
pub async fn seed_automatic_renewal_holds_the_lock_for_any_time(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    for _ in 0..30 {
        world.advance_ms(TTL_MS / 3).await;
        world.renewed(0, &lease).await;
    }
    world.advance_ms(expiry_ms(TTL_MS)).await;
    assert_eq!(world.renew(0, &lease).await, Renewed::Expired);
}

/// `isLocking`: looking tells, and changes nothing.
pub async fn seed_is_locking_is_a_look_that_changes_nothing(world: &World) {
    assert_eq!(world.get().await, None);
    let lease = world.granted(0, &world.call()).await;
    assert!(only(world.state().await.holders).is_some());
    world.release(0, &lease).await;
    let idle = world.state().await;
    assert_eq!((only(idle.holders), idle.queue_length), (None, 0));
    assert_eq!(idle.last_fencing_token, lease.fencing_token.get());
}

/// Pub/sub on unlock: the release itself makes the grant, the message only tells of it.
pub async fn seed_hand_off_grants_in_the_release_and_then_tells(world: &World) {
    let lease = world.held_by(0).await;
    let waiter = world.waiting();
    world.queued(0, &waiter).await;
    world.release(0, &lease).await;
    let holder = only(world.state().await.holders).expect("handed over in the release");
    assert_eq!(holder.lease_id, waiter.lease_id);
    let told = world.hand_off(0, &waiter).await;
    assert_eq!(told.fencing_token, holder.fencing_token);
    assert!(told.fencing_token.get() <= FencingToken::MAX);
}
