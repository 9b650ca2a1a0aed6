//! Leases on streams: renewed and changed from there only, moved by a newer attachment.

use leasehold_server::{
    lock::{Acquire, Attachment, FencingToken, LeaseRef, Mode, Release, StreamId, Via, expiry_ms},
    store::{Acquired, Attached, Cancelled, Released, Renewed},
};

use crate::world::{
    SLACK_MS, TTL_MS, World, again, assert_left, lease, only, with_mode, with_terms, with_ttl,
};

fn stream(world: &World, n: usize, epoch: u64) -> StreamId {
    let broker = world.broker(n);
    StreamId { broker, epoch }
}

fn on(stream: StreamId, number: u32, call: Acquire) -> Acquire {
    Acquire {
        stream: Some(Attachment { stream, number }),
        ..call
    }
}

async fn attach(world: &World, lease: &LeaseRef, to: (usize, u64), number: u32) -> Attached {
    let stream = stream(world, to.0, to.1);
    let attached = world
        .store(to.0)
        .attach(lease, Attachment { stream, number });
    attached.await.expect("attach")
}

async fn attached(world: &World, lease: &LeaseRef, to: (usize, u64), number: u32) {
    let reply = attach(world, lease, to, number).await;
    let Attached::Attached(grant) = reply else {
        panic!("{reply:?} instead of an attachment");
    };
    assert_eq!(grant.fencing_token, lease.fencing_token);
}

async fn renew_via(world: &World, lease: &LeaseRef, n: usize, epoch: u64) -> Renewed {
    let via = Via::Stream(stream(world, n, epoch));
    world.store(n).renew(lease, None, via).await.expect("renew")
}

async fn renewed_via(world: &World, lease: &LeaseRef, n: usize, epoch: u64) {
    let reply = renew_via(world, lease, n, epoch).await;
    assert!(matches!(reply, Renewed::Extended(_)), "{reply:?}");
}

async fn give_up(world: &World, lease: &LeaseRef, what: Release, via: Via) -> Released {
    let n = match via {
        Via::Stream(stream) => (0..3).find(|n| world.broker(*n) == stream.broker),
        Via::Anywhere | Via::Unary => None,
    };
    let released = world.store(n.unwrap_or(3)).release(lease, what, via);
    released.await.expect("release")
}

/// A lease on stream 1 of broker 0, by its first attachment.
async fn held(world: &World) -> (Acquire, LeaseRef) {
    let call = on(stream(world, 0, 1), 1, with_ttl(world.call(), 60_000));
    let lease = world.granted(0, &call).await;
    (call, lease)
}

pub async fn a_lease_on_a_stream_is_renewed_from_it(world: &World) {
    let (_, lease) = held(world).await;
    renewed_via(world, &lease, 0, 1).await;
    assert_eq!(renew_via(world, &lease, 0, 2).await, Renewed::Elsewhere);
    assert_eq!(renew_via(world, &lease, 1, 1).await, Renewed::Elsewhere);
    let unary = world.store(0).renew(&lease, None, Via::Unary).await;
    assert_eq!(unary.expect("renew"), Renewed::Elsewhere);
    world.renewed(2, &lease).await;
}

pub async fn a_renewal_from_elsewhere_extends_nothing(world: &World) {
    let call = on(stream(world, 0, 1), 1, world.call());
    let lease = world.granted(0, &call).await;
    world.advance_ms(TTL_MS).await;
    renew_via(world, &lease, 1, 1).await;
    world.advance_ms(expiry_ms(TTL_MS) - TTL_MS).await;
    assert_eq!(renew_via(world, &lease, 0, 1).await, Renewed::Expired);
}

pub async fn a_unary_lease_is_put_on_a_stream_without_being_extended(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    assert_eq!(renew_via(world, &lease, 1, 7).await, Renewed::Elsewhere);
    world.advance_ms(5_000).await;
    attached(world, &lease, (1, 7), 1).await;
    let holder = only(world.state().await.holders).expect("held");
    assert_left(holder.remaining_ms, expiry_ms(TTL_MS) - 5_000);
    renewed_via(world, &lease, 1, 7).await;
}

pub async fn a_newer_attachment_moves_the_lease_and_the_old_stream_is_told(world: &World) {
    let (_, lease) = held(world).await;
    attached(world, &lease, (1, 1), 2).await;
    let moved = world.told_to_move(0).await;
    assert_eq!(moved.lease_id, lease.lease_id);
    assert_eq!(moved.from.stream, stream(world, 0, 1));
    renewed_via(world, &lease, 1, 1).await;
    assert_eq!(renew_via(world, &lease, 0, 1).await, Renewed::Elsewhere);
    attached(world, &lease, (1, 2), 3).await;
    let moved = world.told_to_move(1).await;
    assert_eq!(
        moved.from.stream,
        stream(world, 1, 1),
        "a stream of the same broker"
    );
}

pub async fn a_move_keeps_token_entries_and_expiry(world: &World) {
    let (_, lease) = held(world).await;
    let entry = on(stream(world, 0, 1), 1, world.entry(&lease));
    assert_eq!(world.entered(0, &entry).await, 2);
    let reply = attach(world, &lease, (1, 1), 2).await;
    let Attached::Attached(grant) = reply else {
        panic!("{reply:?} instead of an attachment");
    };
    assert_eq!(grant.hold_count, 2);
    assert_eq!(grant.fencing_token, lease.fencing_token);
}

pub async fn an_attachment_that_is_no_newer_is_stale_and_changes_nothing(world: &World) {
    let (_, lease) = held(world).await;
    attached(world, &lease, (1, 1), 3).await;
    for number in [1, 2, 3] {
        let late = attach(world, &lease, (0, 1), number).await;
        assert_eq!(late, Attached::Stale);
    }
    renewed_via(world, &lease, 1, 1).await;
    attached(world, &lease, (1, 1), 3).await;
    attached(world, &lease, (1, 1), 1).await;
    assert_eq!(attach(world, &lease, (0, 1), 3).await, Attached::Stale);
    attached(world, &lease, (0, 1), 4).await;
}

pub async fn a_lease_that_is_over_is_not_attached(world: &World) {
    let released = world.granted(0, &world.call()).await;
    world.release(0, &released).await;
    assert_eq!(
        attach(world, &released, (1, 1), 1).await,
        Attached::Released
    );
    let expired = world.granted(0, &world.call()).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    assert_eq!(attach(world, &expired, (1, 1), 1).await, Attached::Expired);
    let live = world.granted(0, &world.call()).await;
    let mut forged = live.clone();
    forged.fencing_token = FencingToken::new(1).expect("a token");
    assert_eq!(attach(world, &forged, (1, 1), 1).await, Attached::NotFound);
    assert_eq!(renew_via(world, &live, 1, 1).await, Renewed::Elsewhere);
}

pub async fn nobody_attaches_past_max_hold(world: &World) {
    let call = with_terms(with_ttl(world.call(), 60_000), 5_000, 0);
    let lease = world.granted(0, &call).await;
    world.advance_ms(5_000).await;
    assert_eq!(attach(world, &lease, (1, 1), 1).await, Attached::MaxHold);
}

pub async fn a_repeat_on_another_stream_moves_the_lease(world: &World) {
    let (call, lease) = held(world).await;
    let late = on(stream(world, 1, 4), 1, again(&call));
    assert_eq!(world.acquire(1, &late).await, Acquired::StaleAttach);
    let mut unary = again(&call);
    unary.stream = None;
    assert_eq!(world.acquire(1, &unary).await, Acquired::StaleAttach);
    renewed_via(world, &lease, 0, 1).await;
    let newer = on(stream(world, 1, 4), 2, again(&call));
    assert_eq!(world.granted(1, &newer).await, lease);
    assert_eq!(world.told_to_move(0).await.from.stream, stream(world, 0, 1));
    renewed_via(world, &lease, 1, 4).await;
}

pub async fn a_repeat_on_another_stream_moves_the_waiter(world: &World) {
    let first = world.held_by(3).await;
    let call = on(stream(world, 0, 1), 2, world.waiting());
    world.queued(0, &call).await;
    world.queued(3, &world.waiting()).await;
    let late = on(stream(world, 1, 1), 2, again(&call));
    assert_eq!(world.acquire(1, &late).await, Acquired::StaleAttach);
    let newer = on(stream(world, 1, 1), 3, again(&call));
    world.queued(1, &newer).await;
    world.release(3, &first).await;
    let hand_off = world.hand_off(1, &newer).await;
    let lease = lease(&newer, hand_off.fencing_token);
    assert_eq!(renew_via(world, &lease, 0, 1).await, Renewed::Elsewhere);
    renewed_via(world, &lease, 1, 1).await;
    assert_eq!(world.state().await.queue_length, 1);
}

pub async fn a_call_repeated_on_another_stream_drops_its_attempts_on_the_old_one(world: &World) {
    let first = world.held_by(3).await;
    let older = on(stream(world, 0, 1), 1, world.waiting());
    world.queued(0, &older).await;
    let newer = on(stream(world, 1, 1), 2, again(&older));
    world.queued(1, &newer).await;
    let next = world.waiting();
    world.queued(3, &next).await;
    assert_eq!(world.cancel(1, &newer).await, Cancelled::Dequeued);
    assert_eq!(world.cancel(0, &older).await, Cancelled::Unknown);
    world.release(0, &first).await;
    world.handed(3, &next).await;
}

pub async fn a_unary_call_repeated_on_a_stream_keeps_its_unary_attempt(world: &World) {
    let first = world.held_by(3).await;
    let unary = world.waiting();
    world.queued(0, &unary).await;
    let newer = on(stream(world, 1, 1), 1, again(&unary));
    world.queued(1, &newer).await;
    assert_eq!(world.cancel(1, &newer).await, Cancelled::Kept);
    world.release(3, &first).await;
    world.handed(0, &unary).await;
}

pub async fn the_end_of_an_old_stream_does_nothing_to_a_lease_that_moved(world: &World) {
    let (_, lease) = held(world).await;
    attached(world, &lease, (1, 1), 2).await;
    let old = Via::Stream(stream(world, 0, 1));
    for what in [Release::All, Release::Lapse] {
        let left = give_up(world, &lease, what, old).await;
        assert_eq!(left, Released::Elsewhere);
    }
    renewed_via(world, &lease, 1, 1).await;
    let new = Via::Stream(stream(world, 1, 1));
    let left = give_up(world, &lease, Release::All, new).await;
    assert_eq!(left, Released::Now { hold_count: 0 });
}

pub async fn a_lease_on_a_stream_is_changed_there_only(world: &World) {
    let (call, lease) = held(world).await;
    let entry = world.entry(&lease);
    assert_eq!(world.acquire(0, &entry).await, Acquired::StaleAttach);
    let other = on(stream(world, 0, 2), 9, entry.clone());
    assert_eq!(world.acquire(0, &other).await, Acquired::StaleAttach);
    let entry = on(stream(world, 0, 1), 1, entry);
    assert_eq!(world.entered(0, &entry).await, 2);
    let part = Release::Entry(call.request);
    let left = give_up(world, &lease, part, Via::Unary).await;
    assert_eq!(left, Released::Elsewhere);
    let here = Via::Stream(stream(world, 0, 1));
    let left = give_up(world, &lease, part, here).await;
    assert_eq!(left, Released::Now { hold_count: 1 });
    let left = give_up(world, &lease, Release::All, Via::Anywhere).await;
    assert_eq!(left, Released::Now { hold_count: 0 });
}

pub async fn a_lapse_ends_the_lease_like_an_expiry(world: &World) {
    let (call, lease) = held(world).await;
    let waiter = world.waiting();
    world.queued(1, &waiter).await;
    let here = Via::Stream(stream(world, 0, 1));
    let left = give_up(world, &lease, Release::Lapse, here).await;
    assert_eq!(left, Released::Now { hold_count: 0 });
    world.handed(1, &waiter).await;
    assert_eq!(renew_via(world, &lease, 0, 1).await, Renewed::Expired);
    assert_eq!(world.acquire(0, &again(&call)).await, Acquired::Ended);
    let left = give_up(world, &lease, Release::Lapse, here).await;
    assert_eq!(left, Released::Expired);
}

pub async fn a_lapse_is_followed_by_the_lock_delay(world: &World) {
    let call = with_terms(with_ttl(world.call(), 60_000), 0, 5_000);
    let call = on(stream(world, 0, 1), 1, call);
    let lease = world.granted(0, &call).await;
    let here = Via::Stream(stream(world, 0, 1));
    give_up(world, &lease, Release::Lapse, here).await;
    world.advance_ms(5_000 - SLACK_MS).await;
    world.refused(1, &world.call()).await;
    world.advance_ms(SLACK_MS).await;
    world.granted(1, &world.call()).await;
}

pub async fn one_reader_of_many_moves_alone(world: &World) {
    let mut readers = Vec::new();
    for epoch in 1..=3 {
        let call = with_mode(with_ttl(world.call(), 60_000), Mode::Shared);
        let call = on(stream(world, 0, epoch), 1, call);
        readers.push(world.granted(0, &call).await);
    }
    attached(world, &readers[1], (1, 1), 2).await;
    renewed_via(world, &readers[0], 0, 1).await;
    renewed_via(world, &readers[1], 1, 1).await;
    renewed_via(world, &readers[2], 0, 3).await;
}

pub async fn a_renewal_tells_the_disconnect_grace_and_how_many_wait(world: &World) {
    let mut call = with_ttl(world.call(), 60_000);
    call.terms.disconnect_grace_ms = Some(0);
    let lease = world.granted(0, &call).await;
    world.queued(0, &world.waiting()).await;
    world.queued(1, &world.waiting()).await;
    let Renewed::Extended(grant) = world.renew(1, &lease).await else {
        panic!("it is held");
    };
    assert_eq!(
        (grant.disconnect_grace_ms, grant.queue_length),
        (Some(0), 2)
    );
    let on = Attachment {
        stream: stream(world, 1, 1),
        number: 1,
    };
    let Attached::Attached(grant) = world.store(1).attach(&lease, on).await.expect("attach") else {
        panic!("it is held");
    };
    assert_eq!(
        (grant.disconnect_grace_ms, grant.queue_length),
        (Some(0), 2)
    );
}

pub async fn a_waiter_knows_its_place_and_the_last_one_its_position(world: &World) {
    world.held_by(0).await;
    let calls = [world.waiting(), world.waiting(), world.waiting()];
    let mut places = Vec::new();
    for (n, (call, last)) in calls.iter().zip(1..).enumerate() {
        let Acquired::Queued {
            place, position, ..
        } = world.acquire(n, call).await
        else {
            panic!("it is held");
        };
        assert_eq!(position, last);
        places.push(place);
    }
    assert!(places.is_sorted(), "{places:?}");
    let shown: Vec<_> = world.state().await.waiters;
    let shown: Vec<_> = shown.iter().map(|waiter| waiter.place).collect();
    assert_eq!(shown, places);
    let Acquired::Queued {
        place, position, ..
    } = world.acquire(3, &again(&calls[1])).await
    else {
        panic!("it is held");
    };
    assert_eq!((place, position), (places[1], 0), "somebody is behind it");
}
