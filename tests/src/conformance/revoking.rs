//! Revocation: an operator takes a lock away from a lease of somebody else.

use leasehold_server::{
    lock::{
        Acquire, Attachment, CLAIM_MS, EXPIRED_MS, Force, LeaseRef, Mode, RELEASED_MAX, Revoke,
        StreamId, TOMBSTONE_MS, Under, Via, expiry_ms,
    },
    store::{Acquired, Attached, Released, Renewed, Revoked},
};

use crate::world::{
    SLACK_MS, TTL_MAX_MS, TTL_MS, World, again, assert_left, lease, only, with_mode, with_terms,
};

const REASON: &str = "a|b\n!\"ä";
const DELAY_MS: u64 = 8_000;

fn revoke(lease: &LeaseRef, grace_ms: u64) -> Revoke {
    Revoke {
        lock: lease.lock.clone(),
        lease_id: lease.lease_id,
        reason: REASON.to_owned(),
        grace_ms,
        lock_delay_ms: None,
        force: Force::Revoke,
    }
}

fn unsafely(lease: &LeaseRef) -> Revoke {
    Revoke {
        force: Force::Unsafe,
        ..revoke(lease, 0)
    }
}

/// Revokes by broker `n`.
async fn asked(world: &World, n: usize, revoke: &Revoke) -> Revoked {
    world.store(n).revoke(revoke).await.expect("revoke")
}

/// Revokes by broker `n`, which must find that lease; returns how many waited.
async fn taken(world: &World, n: usize, revoke: &Revoke) -> u32 {
    let reply = asked(world, n, revoke).await;
    let Revoked::Taken {
        holder,
        queue_length,
        ..
    } = reply
    else {
        panic!("{reply:?} instead of a holder");
    };
    assert_eq!(holder.lease_id, revoke.lease_id);
    queue_length
}

fn refused() -> Renewed {
    Renewed::Revoked {
        reason: REASON.to_owned(),
    }
}

fn gone() -> Released {
    Released::Revoked {
        reason: REASON.to_owned(),
    }
}

async fn remaining_ms(world: &World) -> u64 {
    only(world.state().await.holders)
        .expect("held")
        .remaining_ms
}

async fn renewed_ttl_ms(world: &World, lease: &LeaseRef) -> u64 {
    let reply = world.renew(0, lease).await;
    let Renewed::Extended(grant) = reply else {
        panic!("{reply:?} instead of a renewal");
    };
    grant.ttl.as_millis()
}

pub async fn a_revoked_lease_is_renewed_no_more_and_holds_until_it_has_run_out(world: &World) {
    let held = world.granted(0, &world.call()).await;
    world.advance_ms(2_000).await;
    taken(world, 1, &revoke(&held, 0)).await;
    for n in [0, 1] {
        assert_eq!(world.renew(n, &held).await, refused());
    }
    world.refused(0, &world.call()).await;
    world
        .advance_ms(expiry_ms(TTL_MS) - 2_000 - 2 * SLACK_MS)
        .await;
    world.refused(0, &world.call()).await;
    world.advance_ms(2 * SLACK_MS).await;
    let next = world.granted(0, &world.call()).await;
    assert!(next.fencing_token > held.fencing_token);
    assert_eq!(world.renew(0, &held).await, refused());
    assert_eq!(world.release(0, &held).await, gone());
}

pub async fn a_revoked_lease_that_is_given_back_is_free_at_once(world: &World) {
    let held = world.held_by(0).await;
    taken(world, 1, &revoke(&held, 0)).await;
    let released = Released::Now { hold_count: 0 };
    assert_eq!(world.release(0, &held).await, released);
    world.held_by(1).await;
    assert_eq!(world.renew(0, &held).await, Renewed::Released);
}

pub async fn a_revocation_never_shortens_a_validity(world: &World) {
    let held = world.held_by(0).await;
    taken(world, 0, &revoke(&held, 0)).await;
    assert_left(remaining_ms(world).await, expiry_ms(TTL_MAX_MS));
}

pub async fn a_grace_lets_the_lease_be_renewed_until_its_end(world: &World) {
    let held = world.granted(0, &world.call()).await;
    taken(world, 0, &revoke(&held, 14_000)).await;
    assert_eq!(renewed_ttl_ms(world, &held).await, TTL_MS);
    world.advance_ms(6_000).await;
    assert_left(renewed_ttl_ms(world, &held).await, 8_000);
    world.advance_ms(8_000).await;
    assert_eq!(world.renew(0, &held).await, refused());
    world.refused(0, &world.call()).await;
}

pub async fn the_earliest_end_of_several_revocations_counts(world: &World) {
    let held = world.granted(0, &world.call()).await;
    taken(world, 0, &revoke(&held, 6_000)).await;
    taken(world, 1, &revoke(&held, 60_000)).await;
    assert_left(renewed_ttl_ms(world, &held).await, 6_000);
    taken(world, 1, &revoke(&held, 3_000)).await;
    assert_left(renewed_ttl_ms(world, &held).await, 3_000);
}

pub async fn a_revocation_later_than_max_hold_changes_no_end(world: &World) {
    let held = world.granted(0, &with_terms(world.call(), 5_000, 0)).await;
    taken(world, 0, &revoke(&held, 9_000)).await;
    assert_left(renewed_ttl_ms(world, &held).await, 5_000);
    world.advance_ms(5_000).await;
    assert_eq!(world.renew(0, &held).await, refused());
}

pub async fn an_unsafe_revocation_frees_the_lock_now(world: &World) {
    let held = world.held_by(0).await;
    taken(world, 1, &unsafely(&held)).await;
    let next = world.granted(0, &world.call()).await;
    assert!(next.fencing_token > held.fencing_token);
    assert_eq!(world.renew(0, &held).await, refused());
    // Before the release: a slow server could execute the release first, and then report the lease as released.
    assert_eq!(asked(world, 1, &unsafely(&held)).await, Revoked::Already);
    assert_eq!(world.release(0, &held).await, gone());
    world.renewed(0, &next).await;
}

pub async fn an_unsafe_revocation_hands_the_lock_on(world: &World) {
    let held = world.held_by(0).await;
    let (first, second) = (world.waiting(), world.waiting());
    world.queued(1, &first).await;
    world.queued(0, &second).await;
    assert_eq!(taken(world, 2, &unsafely(&held)).await, 2);
    let lease = world.handed(1, &first).await;
    assert_eq!(world.state().await.queue_length, 1);
    world.renewed(1, &lease).await;
}

pub async fn a_revocation_that_is_only_asked_for_changes_nothing(world: &World) {
    let held = world.granted(0, &world.call()).await;
    let before = world.state().await;
    let look = Revoke {
        force: Force::None,
        lock_delay_ms: Some(DELAY_MS),
        ..revoke(&held, 0)
    };
    taken(world, 1, &look).await;
    let after = world.state().await;
    assert_eq!(after.holder_count, before.holder_count);
    world.renewed(0, &held).await;
    world.release(0, &held).await;
    world.held_by(0).await;
}

pub async fn a_revocation_hits_no_other_lease(world: &World) {
    let released = world.held_by(0).await;
    world.release(0, &released).await;
    let expired = world.granted(0, &world.call()).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    let unknown = lease(&world.call(), expired.fencing_token);
    let held = world.held_by(0).await;
    for (ended, reply) in [
        (&released, Revoked::Released),
        (&expired, Revoked::Expired),
        (&unknown, Revoked::NotFound),
    ] {
        for call in [revoke(ended, 0), unsafely(ended)] {
            assert_eq!(asked(world, 1, &call).await, reply);
        }
    }
    world.renewed(0, &held).await;
}

pub async fn a_revoked_lease_is_remembered_for_a_minute(world: &World) {
    let held = world.held_by(0).await;
    taken(world, 0, &unsafely(&held)).await;
    world.advance_ms(EXPIRED_MS - 2 * SLACK_MS).await;
    assert_eq!(world.renew(0, &held).await, refused());
    world.advance_ms(3 * SLACK_MS).await;
    assert_eq!(world.renew(0, &held).await, Renewed::NotFound);
}

pub async fn a_lock_delay_of_a_revocation_closes_the_lock_however_it_ends(world: &World) {
    let closing = |call: Revoke| Revoke {
        lock_delay_ms: Some(DELAY_MS),
        ..call
    };
    for unsafe_now in [false, true] {
        let held = world.held_by(0).await;
        match unsafe_now {
            true => assert_eq!(taken(world, 0, &closing(unsafely(&held))).await, 0),
            false => {
                taken(world, 0, &closing(revoke(&held, 0))).await;
                world.release(0, &held).await;
            }
        }
        let contention = world.refused(0, &world.call()).await;
        assert_eq!(contention.holders, []);
        assert_left(contention.closed_ms, DELAY_MS);
        world.advance_ms(DELAY_MS).await;
    }
    let held = world.granted(0, &world.call()).await;
    taken(world, 0, &closing(revoke(&held, 0))).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    assert_left(world.refused(0, &world.call()).await.closed_ms, DELAY_MS);
}

pub async fn the_lock_delay_of_the_lease_closes_the_lock_only_if_it_runs_out(world: &World) {
    let delayed = || with_terms(world.call(), 0, DELAY_MS);
    let held = world.granted(0, &delayed()).await;
    taken(world, 0, &revoke(&held, 0)).await;
    world.release(0, &held).await;
    let held = world.granted(0, &delayed()).await;
    taken(world, 0, &unsafely(&held)).await;
    assert_left(world.refused(0, &world.call()).await.closed_ms, DELAY_MS);
}

fn on_stream(world: &World, n: usize) -> Attachment {
    Attachment {
        stream: StreamId {
            broker: world.broker(n),
            epoch: 7,
        },
        number: 1,
    }
}

pub async fn the_stream_of_a_revoked_lease_is_told(world: &World) {
    let mut call = world.call();
    call.stream = Some(on_stream(world, 0));
    let held = world.granted(0, &call).await;
    for (n, grace_ms) in [(1, 5_000), (0, 0)] {
        taken(world, n, &revoke(&held, grace_ms)).await;
        let told = world.told_of_revocation(0, grace_ms).await;
        assert_eq!(told.lease_id, held.lease_id);
        assert_eq!(
            (told.on, told.reason.as_str()),
            (on_stream(world, 0), REASON)
        );
    }
    world.advance_ms(10).await;
    let via = Via::Stream(on_stream(world, 0).stream);
    let renewed = world.store(0).renew(&held, None, via).await;
    assert_eq!(renewed, Ok(refused()));
}

pub async fn a_revoked_lease_is_put_on_no_stream(world: &World) {
    let held = world.held_by(0).await;
    let attach = async || world.store(1).attach(&held, on_stream(world, 1)).await;
    taken(world, 0, &revoke(&held, 5_000)).await;
    let attached = attach().await;
    assert!(
        matches!(attached, Ok(Attached::Attached(_))),
        "in its grace: {attached:?}"
    );
    taken(world, 0, &revoke(&held, 0)).await;
    world.advance_ms(10).await;
    let reason = REASON.to_owned();
    assert_eq!(attach().await, Ok(Attached::Revoked { reason }));
}

pub async fn nobody_enters_a_lease_that_is_revoked(world: &World) {
    let call = world.call();
    let held = world.granted(0, &call).await;
    taken(world, 0, &revoke(&held, 5_000)).await;
    assert_eq!(world.entered(0, &world.entry(&held)).await, 2);
    taken(world, 0, &revoke(&held, 0)).await;
    world.advance_ms(10).await;
    assert_eq!(world.acquire(0, &world.entry(&held)).await, Acquired::Ended);
    assert_eq!(world.acquire(0, &again(&call)).await, Acquired::Ended);
}

pub async fn a_revocation_takes_one_of_several_holders(world: &World) {
    let reader = || with_mode(world.call(), Mode::Shared);
    let mut readers = Vec::new();
    for n in 0..3 {
        readers.push(world.granted(n, &reader()).await);
    }
    let writer = world.waiting();
    world.queued(3, &writer).await;
    taken(world, 0, &unsafely(&readers[1])).await;
    assert_eq!(world.renew(1, &readers[1]).await, refused());
    for n in [0, 2] {
        world.renewed(n, &readers[n]).await;
        assert_eq!(world.state().await.queue_length, 1);
        taken(world, 1, &unsafely(&readers[n])).await;
    }
    world.handed(3, &writer).await;
}

/// A lease that waits twice at a lock holds it twice, one after the other.
pub async fn a_revocation_forgets_no_earlier_end(world: &World) {
    let before = world.held_by(0).await;
    let first = Acquire {
        under: Under::Lease,
        ..world.waiting()
    };
    let second = Acquire {
        lease_id: first.lease_id,
        under: Under::Lease,
        ..world.waiting()
    };
    world.queued(0, &first).await;
    world.queued(0, &second).await;
    world.release(0, &before).await;
    world.pass_ms(expiry_ms(TTL_MS) + 1_500, &[0]).await;
    let held = world.granted(0, &again(&second)).await;
    taken(world, 0, &revoke(&held, 0)).await;
    world.release(0, &held).await;
    for _ in 0..RELEASED_MAX {
        let other = world.held_by(0).await;
        world.release(0, &other).await;
    }
    world.advance_ms(TOMBSTONE_MS).await;
    assert_eq!(world.release(0, &held).await, Released::Expired);
}

pub async fn an_unclaimed_hand_off_cannot_be_revoked(world: &World) {
    let held = world.held_by(0).await;
    let waiter = world.waiting();
    world.queued(1, &waiter).await;
    world.release(0, &held).await;
    let hand_off = world.hand_off(1, &waiter).await;
    let next = lease(&waiter, hand_off.fencing_token);
    assert_eq!(asked(world, 0, &unsafely(&next)).await, Revoked::NotFound);
    world.advance_ms(CLAIM_MS / 2).await;
    world.renewed(1, &next).await;
    taken(world, 0, &unsafely(&next)).await;
}
