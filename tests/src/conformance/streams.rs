//! Leases on streams: renewed and changed only from their stream, moved by a newer attachment.

use leasehold_server::{
    lock::{
        AcquireCommand, Attachment, ExpectedAttachment, FencingToken, Grant, LeaseRef, Mode,
        ReleaseScope, StreamId, expiry_ms,
    },
    store::{Acquired, Cancelled, LeaseRejection, LeaseReply, Released, Renewal},
};

use crate::store_fixture::{
    SLACK_MS, StoreFixture, TTL_MS, assert_remaining, at_most_one, lease_of, new_attempt,
    released_now, with_hold_and_delay, with_mode, with_ttl,
};

fn stream_id(store_fixture: &StoreFixture, n: usize, epoch: u64) -> StreamId {
    let broker = store_fixture.broker(n);
    StreamId { broker, epoch }
}

fn call_on_stream(stream: StreamId, number: u32, call: AcquireCommand) -> AcquireCommand {
    AcquireCommand {
        stream: Some(Attachment { stream, number }),
        ..call
    }
}

async fn attach(
    store_fixture: &StoreFixture,
    lease: &LeaseRef,
    to: (usize, u64),
    number: u32,
) -> LeaseReply<Grant> {
    let stream = stream_id(store_fixture, to.0, to.1);
    let attached = store_fixture
        .store(to.0)
        .attach(lease, Attachment { stream, number });
    attached.await.expect("attach")
}

async fn expect_attached(
    store_fixture: &StoreFixture,
    lease: &LeaseRef,
    to: (usize, u64),
    number: u32,
) {
    let reply = attach(store_fixture, lease, to, number).await;
    let Ok(grant) = reply else {
        panic!("{reply:?} instead of an attachment");
    };
    assert_eq!(grant.fencing_token, lease.fencing_token);
}

async fn renew_via(
    store_fixture: &StoreFixture,
    lease: &LeaseRef,
    n: usize,
    epoch: u64,
) -> LeaseReply<Grant> {
    let via = ExpectedAttachment::Stream(stream_id(store_fixture, n, epoch));
    store_fixture
        .store(n)
        .renew(lease, Renewal::undelivered(via))
        .await
        .expect("renew")
}

async fn expect_renewed_via(store_fixture: &StoreFixture, lease: &LeaseRef, n: usize, epoch: u64) {
    let reply = renew_via(store_fixture, lease, n, epoch).await;
    assert!(reply.is_ok(), "{reply:?}");
}

async fn release_via(
    store_fixture: &StoreFixture,
    lease: &LeaseRef,
    what: ReleaseScope,
    via: ExpectedAttachment,
) -> LeaseReply<Released> {
    let n = match via {
        ExpectedAttachment::Stream(stream) => {
            (0..3).find(|n| store_fixture.broker(*n) == stream.broker)
        }
        ExpectedAttachment::Any | ExpectedAttachment::None => None,
    };
    let released = store_fixture
        .store(n.unwrap_or(3))
        .release(lease, what, via);
    released.await.expect("release")
}

/// Acquires a lease on stream 1 of broker 0, as its first attachment.
async fn acquire_on_stream(store_fixture: &StoreFixture) -> (AcquireCommand, LeaseRef) {
    let call = call_on_stream(
        stream_id(store_fixture, 0, 1),
        1,
        with_ttl(store_fixture.call(), 60_000),
    );
    let lease = store_fixture.expect_granted(0, &call).await;
    (call, lease)
}

pub async fn a_lease_on_a_stream_is_renewed_from_it(store_fixture: &StoreFixture) {
    let (_, lease) = acquire_on_stream(store_fixture).await;
    expect_renewed_via(store_fixture, &lease, 0, 1).await;
    assert_eq!(
        renew_via(store_fixture, &lease, 0, 2).await,
        Err(LeaseRejection::Elsewhere)
    );
    assert_eq!(
        renew_via(store_fixture, &lease, 1, 1).await,
        Err(LeaseRejection::Elsewhere)
    );
    let unary = store_fixture
        .store(0)
        .renew(&lease, Renewal::undelivered(ExpectedAttachment::None))
        .await;
    assert_eq!(unary.expect("renew"), Err(LeaseRejection::Elsewhere));
    store_fixture.expect_renewed(2, &lease).await;
}

pub async fn a_renewal_from_elsewhere_extends_nothing(store_fixture: &StoreFixture) {
    let call = call_on_stream(stream_id(store_fixture, 0, 1), 1, store_fixture.call());
    let lease = store_fixture.expect_granted(0, &call).await;
    store_fixture.advance_ms(TTL_MS).await;
    assert_eq!(
        renew_via(store_fixture, &lease, 1, 1).await,
        Err(LeaseRejection::Elsewhere)
    );
    store_fixture.advance_ms(expiry_ms(TTL_MS) - TTL_MS).await;
    assert_eq!(
        renew_via(store_fixture, &lease, 0, 1).await,
        Err(LeaseRejection::Expired)
    );
}

pub async fn a_unary_lease_is_put_on_a_stream_without_being_extended(store_fixture: &StoreFixture) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    assert_eq!(
        renew_via(store_fixture, &lease, 1, 7).await,
        Err(LeaseRejection::Elsewhere)
    );
    store_fixture.advance_ms(5_000).await;
    expect_attached(store_fixture, &lease, (1, 7), 1).await;
    let holder = at_most_one(store_fixture.expect_state().await.holders).expect("held");
    assert_remaining(holder.remaining_ms, expiry_ms(TTL_MS) - 5_000);
    expect_renewed_via(store_fixture, &lease, 1, 7).await;
}

pub async fn a_newer_attachment_moves_the_lease_and_the_old_stream_is_told(
    store_fixture: &StoreFixture,
) {
    let (_, lease) = acquire_on_stream(store_fixture).await;
    expect_attached(store_fixture, &lease, (1, 1), 2).await;
    let moved = store_fixture.wait_for_move(0).await;
    assert_eq!(moved.lease_id, lease.lease_id);
    assert_eq!(moved.from.stream, stream_id(store_fixture, 0, 1));
    expect_renewed_via(store_fixture, &lease, 1, 1).await;
    assert_eq!(
        renew_via(store_fixture, &lease, 0, 1).await,
        Err(LeaseRejection::Elsewhere)
    );
    expect_attached(store_fixture, &lease, (1, 2), 3).await;
    let moved = store_fixture.wait_for_move(1).await;
    assert_eq!(
        moved.from.stream,
        stream_id(store_fixture, 1, 1),
        "a stream of the same broker"
    );
}

pub async fn a_move_keeps_token_entries_and_expiry(store_fixture: &StoreFixture) {
    let (_, lease) = acquire_on_stream(store_fixture).await;
    let entry = call_on_stream(
        stream_id(store_fixture, 0, 1),
        1,
        store_fixture.reentry_call(&lease),
    );
    assert_eq!(store_fixture.expect_reentered(0, &entry).await, 2);
    let reply = attach(store_fixture, &lease, (1, 1), 2).await;
    let Ok(grant) = reply else {
        panic!("{reply:?} instead of an attachment");
    };
    assert_eq!(grant.hold_count, 2);
    assert_eq!(grant.fencing_token, lease.fencing_token);
}

pub async fn an_attachment_that_is_no_newer_is_stale_and_changes_nothing(
    store_fixture: &StoreFixture,
) {
    let (_, lease) = acquire_on_stream(store_fixture).await;
    expect_attached(store_fixture, &lease, (1, 1), 3).await;
    for number in [1, 2, 3] {
        let late = attach(store_fixture, &lease, (0, 1), number).await;
        assert_eq!(late, Err(LeaseRejection::Elsewhere));
    }
    expect_renewed_via(store_fixture, &lease, 1, 1).await;
    expect_attached(store_fixture, &lease, (1, 1), 3).await;
    expect_attached(store_fixture, &lease, (1, 1), 1).await;
    assert_eq!(
        attach(store_fixture, &lease, (0, 1), 3).await,
        Err(LeaseRejection::Elsewhere)
    );
    expect_attached(store_fixture, &lease, (0, 1), 4).await;
}

pub async fn a_lease_that_is_over_is_not_attached(store_fixture: &StoreFixture) {
    let released = store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture.expect_released(0, &released).await;
    assert_eq!(
        attach(store_fixture, &released, (1, 1), 1).await,
        Err(LeaseRejection::Released)
    );
    let expired = store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    assert_eq!(
        attach(store_fixture, &expired, (1, 1), 1).await,
        Err(LeaseRejection::Expired)
    );
    let live = store_fixture.expect_granted(0, &store_fixture.call()).await;
    let mut forged = live.clone();
    forged.fencing_token = FencingToken::new(1).expect("a token");
    assert_eq!(
        attach(store_fixture, &forged, (1, 1), 1).await,
        Err(LeaseRejection::NotFound)
    );
    assert_eq!(
        renew_via(store_fixture, &live, 1, 1).await,
        Err(LeaseRejection::Elsewhere)
    );
}

pub async fn attaching_past_max_hold_is_refused(store_fixture: &StoreFixture) {
    let call = with_hold_and_delay(with_ttl(store_fixture.call(), 60_000), 5_000, 0);
    let lease = store_fixture.expect_granted(0, &call).await;
    store_fixture.advance_ms(5_000).await;
    assert_eq!(
        attach(store_fixture, &lease, (1, 1), 1).await,
        Err(LeaseRejection::MaxHold)
    );
}

pub async fn a_repeat_on_another_stream_moves_the_lease(store_fixture: &StoreFixture) {
    let (call, lease) = acquire_on_stream(store_fixture).await;
    let late = call_on_stream(stream_id(store_fixture, 1, 4), 1, new_attempt(&call));
    assert_eq!(store_fixture.acquire(1, &late).await, Acquired::StaleAttach);
    let mut unary = new_attempt(&call);
    unary.stream = None;
    assert_eq!(
        store_fixture.acquire(1, &unary).await,
        Acquired::StaleAttach
    );
    expect_renewed_via(store_fixture, &lease, 0, 1).await;
    let newer = call_on_stream(stream_id(store_fixture, 1, 4), 2, new_attempt(&call));
    assert_eq!(store_fixture.expect_granted(1, &newer).await, lease);
    assert_eq!(
        store_fixture.wait_for_move(0).await.from.stream,
        stream_id(store_fixture, 0, 1)
    );
    expect_renewed_via(store_fixture, &lease, 1, 4).await;
}

pub async fn a_repeat_on_another_stream_moves_the_waiter(store_fixture: &StoreFixture) {
    let first = store_fixture.acquire_long(3).await;
    let call = call_on_stream(
        stream_id(store_fixture, 0, 1),
        2,
        store_fixture.waiting_call(),
    );
    store_fixture.expect_queued(0, &call).await;
    store_fixture
        .expect_queued(3, &store_fixture.waiting_call())
        .await;
    let late = call_on_stream(stream_id(store_fixture, 1, 1), 2, new_attempt(&call));
    assert_eq!(store_fixture.acquire(1, &late).await, Acquired::StaleAttach);
    let newer = call_on_stream(stream_id(store_fixture, 1, 1), 3, new_attempt(&call));
    store_fixture.expect_queued(1, &newer).await;
    store_fixture.expect_released(3, &first).await;
    let hand_off = store_fixture.next_hand_off(1, &newer).await;
    let lease = lease_of(&newer, hand_off.fencing_token);
    assert_eq!(
        renew_via(store_fixture, &lease, 0, 1).await,
        Err(LeaseRejection::Elsewhere)
    );
    expect_renewed_via(store_fixture, &lease, 1, 1).await;
    assert_eq!(store_fixture.expect_state().await.queue_length, 1);
}

pub async fn a_call_repeated_on_another_stream_drops_its_attempts_on_the_old_one(
    store_fixture: &StoreFixture,
) {
    let first = store_fixture.acquire_long(3).await;
    let older = call_on_stream(
        stream_id(store_fixture, 0, 1),
        1,
        store_fixture.waiting_call(),
    );
    store_fixture.expect_queued(0, &older).await;
    let newer = call_on_stream(stream_id(store_fixture, 1, 1), 2, new_attempt(&older));
    store_fixture.expect_queued(1, &newer).await;
    let next = store_fixture.waiting_call();
    store_fixture.expect_queued(3, &next).await;
    assert_eq!(store_fixture.cancel(1, &newer).await, Cancelled::Dequeued);
    assert_eq!(store_fixture.cancel(0, &older).await, Cancelled::Unknown);
    store_fixture.expect_released(0, &first).await;
    store_fixture.claim_next_hand_off(3, &next).await;
}

pub async fn a_unary_call_repeated_on_a_stream_keeps_its_unary_attempt(
    store_fixture: &StoreFixture,
) {
    let first = store_fixture.acquire_long(3).await;
    let unary = store_fixture.waiting_call();
    store_fixture.expect_queued(0, &unary).await;
    let newer = call_on_stream(stream_id(store_fixture, 1, 1), 1, new_attempt(&unary));
    store_fixture.expect_queued(1, &newer).await;
    assert_eq!(store_fixture.cancel(1, &newer).await, Cancelled::Kept);
    store_fixture.expect_released(3, &first).await;
    store_fixture.claim_next_hand_off(0, &unary).await;
}

pub async fn the_end_of_an_old_stream_does_nothing_to_a_lease_that_moved(
    store_fixture: &StoreFixture,
) {
    let (_, lease) = acquire_on_stream(store_fixture).await;
    expect_attached(store_fixture, &lease, (1, 1), 2).await;
    let old = ExpectedAttachment::Stream(stream_id(store_fixture, 0, 1));
    for what in [ReleaseScope::All, ReleaseScope::ExpireNow] {
        let left = release_via(store_fixture, &lease, what, old).await;
        assert_eq!(left, Err(LeaseRejection::Elsewhere));
    }
    expect_renewed_via(store_fixture, &lease, 1, 1).await;
    let new = ExpectedAttachment::Stream(stream_id(store_fixture, 1, 1));
    let left = release_via(store_fixture, &lease, ReleaseScope::All, new).await;
    assert_eq!(left, released_now(0));
}

pub async fn a_lease_on_a_stream_is_changed_there_only(store_fixture: &StoreFixture) {
    let (call, lease) = acquire_on_stream(store_fixture).await;
    let entry = store_fixture.reentry_call(&lease);
    assert_eq!(
        store_fixture.acquire(0, &entry).await,
        Acquired::StaleAttach
    );
    let other = call_on_stream(stream_id(store_fixture, 0, 2), 9, entry.clone());
    assert_eq!(
        store_fixture.acquire(0, &other).await,
        Acquired::StaleAttach
    );
    let entry = call_on_stream(stream_id(store_fixture, 0, 1), 1, entry);
    assert_eq!(store_fixture.expect_reentered(0, &entry).await, 2);
    let part = ReleaseScope::Entry(call.request);
    let left = release_via(store_fixture, &lease, part, ExpectedAttachment::None).await;
    assert_eq!(left, Err(LeaseRejection::Elsewhere));
    let here = ExpectedAttachment::Stream(stream_id(store_fixture, 0, 1));
    let left = release_via(store_fixture, &lease, part, here).await;
    assert_eq!(left, released_now(1));
    let left = release_via(
        store_fixture,
        &lease,
        ReleaseScope::All,
        ExpectedAttachment::Any,
    )
    .await;
    assert_eq!(left, released_now(0));
}

pub async fn a_lapse_ends_the_lease_like_an_expiry(store_fixture: &StoreFixture) {
    let (call, lease) = acquire_on_stream(store_fixture).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &waiter).await;
    let here = ExpectedAttachment::Stream(stream_id(store_fixture, 0, 1));
    let left = release_via(store_fixture, &lease, ReleaseScope::ExpireNow, here).await;
    assert_eq!(left, released_now(0));
    store_fixture.claim_next_hand_off(1, &waiter).await;
    assert_eq!(
        renew_via(store_fixture, &lease, 0, 1).await,
        Err(LeaseRejection::Expired)
    );
    assert_eq!(
        store_fixture.acquire(0, &new_attempt(&call)).await,
        Acquired::Ended
    );
    let left = release_via(store_fixture, &lease, ReleaseScope::ExpireNow, here).await;
    assert_eq!(left, Err(LeaseRejection::Expired));
}

pub async fn a_lapse_is_followed_by_the_lock_delay(store_fixture: &StoreFixture) {
    let call = with_hold_and_delay(with_ttl(store_fixture.call(), 60_000), 0, 5_000);
    let call = call_on_stream(stream_id(store_fixture, 0, 1), 1, call);
    let lease = store_fixture.expect_granted(0, &call).await;
    let here = ExpectedAttachment::Stream(stream_id(store_fixture, 0, 1));
    let left = release_via(store_fixture, &lease, ReleaseScope::ExpireNow, here).await;
    assert_eq!(left, released_now(0));
    store_fixture.advance_ms(5_000 - SLACK_MS).await;
    store_fixture.expect_held(1, &store_fixture.call()).await;
    store_fixture.advance_ms(SLACK_MS).await;
    store_fixture.expect_granted(1, &store_fixture.call()).await;
}

pub async fn one_reader_of_many_moves_alone(store_fixture: &StoreFixture) {
    let mut readers = Vec::new();
    for epoch in 1..=3 {
        let call = with_mode(with_ttl(store_fixture.call(), 60_000), Mode::Shared);
        let call = call_on_stream(stream_id(store_fixture, 0, epoch), 1, call);
        readers.push(store_fixture.expect_granted(0, &call).await);
    }
    expect_attached(store_fixture, &readers[1], (1, 1), 2).await;
    expect_renewed_via(store_fixture, &readers[0], 0, 1).await;
    expect_renewed_via(store_fixture, &readers[1], 1, 1).await;
    expect_renewed_via(store_fixture, &readers[2], 0, 3).await;
}

pub async fn a_renewal_returns_the_disconnect_grace_and_the_queue_length(
    store_fixture: &StoreFixture,
) {
    let mut call = with_ttl(store_fixture.call(), 60_000);
    call.options.disconnect_grace_ms = Some(0);
    let lease = store_fixture.expect_granted(0, &call).await;
    store_fixture
        .expect_queued(0, &store_fixture.waiting_call())
        .await;
    store_fixture
        .expect_queued(1, &store_fixture.waiting_call())
        .await;
    let Ok(grant) = store_fixture.renew(1, &lease).await else {
        panic!("it is held");
    };
    assert_eq!(
        (grant.disconnect_grace_ms, grant.queue_length),
        (Some(0), 2)
    );
    let on = Attachment {
        stream: stream_id(store_fixture, 1, 1),
        number: 1,
    };
    let Ok(grant) = store_fixture
        .store(1)
        .attach(&lease, on)
        .await
        .expect("attach")
    else {
        panic!("it is held");
    };
    assert_eq!(
        (grant.disconnect_grace_ms, grant.queue_length),
        (Some(0), 2)
    );
}

pub async fn a_waiter_has_its_sequence_and_the_last_one_its_position(store_fixture: &StoreFixture) {
    store_fixture.acquire_long(0).await;
    let calls = [
        store_fixture.waiting_call(),
        store_fixture.waiting_call(),
        store_fixture.waiting_call(),
    ];
    let mut positions = Vec::new();
    for (n, (call, last)) in calls.iter().zip(1..).enumerate() {
        let Acquired::Queued {
            sequence: place,
            position,
            ..
        } = store_fixture.acquire(n, call).await
        else {
            panic!("it is held");
        };
        assert_eq!(position, Some(last));
        positions.push(place.expect("it is queued"));
    }
    assert!(positions.is_sorted(), "{positions:?}");
    let shown: Vec<_> = store_fixture.expect_state().await.waiters;
    let shown: Vec<_> = shown.iter().map(|waiter| waiter.sequence).collect();
    assert_eq!(shown, positions);
    let Acquired::Queued {
        sequence: place,
        position,
        ..
    } = store_fixture.acquire(3, &new_attempt(&calls[1])).await
    else {
        panic!("it is held");
    };
    assert_eq!(
        (place, position),
        (Some(positions[1]), None),
        "a caller is behind it"
    );
}
