//! Shared and exclusive holders of one lock: readers together, writers alone, in the order of the line.

use leasehold_server::{
    lock::{Acquire, CLAIM_MS, FencingToken, Mode, expiry_ms},
    store::{Cancelled, Checked, Renewed},
};

use crate::world::{
    SLACK_MS, TTL_MAX_MS, TTL_MS, World, again, assert_left, lease, only, with_mode, with_ttl,
};

fn reader(world: &World) -> Acquire {
    with_mode(world.call(), Mode::Shared)
}

fn waiting_reader(world: &World) -> Acquire {
    with_mode(world.waiting(), Mode::Shared)
}

pub async fn readers_hold_together(world: &World) {
    let (one, other) = (reader(world), reader(world));
    let first = world.granted(0, &one).await;
    let second = world.granted(1, &other).await;
    assert!(first.fencing_token < second.fencing_token);
    world.renewed(0, &first).await;
    world.renewed(1, &second).await;
    let state = world.state().await;
    assert_eq!(state.holder_count, 2);
    assert!(state.holders.iter().all(|held| held.mode == Mode::Shared));
}

pub async fn a_writer_waits_for_the_last_reader(world: &World) {
    let first = world.granted(0, &reader(world)).await;
    let second = world.granted(0, &reader(world)).await;
    let writer = world.waiting();
    world.queued(0, &writer).await;
    world.release(0, &first).await;
    assert_eq!(world.state().await.queue_length, 1);
    world.release(0, &second).await;
    world.hand_off(0, &writer).await;
    let holder = only(world.state().await.holders).expect("the writer");
    assert_eq!(
        (holder.lease_id, holder.mode),
        (writer.lease_id, Mode::Exclusive)
    );
}

pub async fn a_reader_waits_for_the_writer(world: &World) {
    let writer = world.held_by(0).await;
    world.refused(0, &reader(world)).await;
    let reader = waiting_reader(world);
    world.queued(0, &reader).await;
    world.release(0, &writer).await;
    world.handed(0, &reader).await;
}

pub async fn t16_a_queued_writer_stops_later_readers(world: &World) {
    let first = world.granted(0, &reader(world)).await;
    let writer = world.waiting();
    world.queued(0, &writer).await;
    world.refused(0, &reader(world)).await;
    let late = waiting_reader(world);
    world.queued(0, &late).await;
    world.release(0, &first).await;
    let writer = world.handed(0, &writer).await;
    assert_eq!(world.state().await.queue_length, 1);
    world.release(0, &writer).await;
    world.handed(0, &late).await;
}

pub async fn consecutive_readers_at_the_head_enter_together(world: &World) {
    let writer = world.held_by(0).await;
    let (one, other) = (waiting_reader(world), waiting_reader(world));
    let next = world.waiting();
    let behind = waiting_reader(world);
    for call in [&one, &other, &next, &behind] {
        world.queued(0, call).await;
    }
    world.release(0, &writer).await;
    let one = world.handed(0, &one).await;
    let other = world.handed(0, &other).await;
    let state = world.state().await;
    assert_eq!((state.holder_count, state.queue_length), (2, 2));
    world.release(0, &one).await;
    world.release(0, &other).await;
    world.handed(0, &next).await;
    assert_eq!(world.state().await.queue_length, 1);
}

pub async fn readers_of_several_brokers_enter_together(world: &World) {
    let writer = world.held_by(0).await;
    let calls = [(); 4].map(|()| waiting_reader(world));
    for (index, call) in calls.iter().enumerate() {
        world.queued(1 + index % 2, call).await;
    }
    world.release(0, &writer).await;
    for (index, call) in calls.iter().enumerate() {
        let told = world.hand_off(1 + index % 2, call).await;
        assert!(told.provisional);
        world.renewed(3, &lease(call, told.fencing_token)).await;
    }
    let state = world.state().await;
    assert_eq!((state.holder_count, state.queue_length), (4, 0));
}

pub async fn a_reader_joins_readers_that_have_not_claimed_yet(world: &World) {
    let writer = world.held_by(0).await;
    let told = waiting_reader(world);
    world.queued(1, &told).await;
    world.release(0, &writer).await;
    world.granted(0, &reader(world)).await;
    world.handed(1, &told).await;
    assert_eq!(world.state().await.holder_count, 2);
}

pub async fn a_reader_that_lapses_gives_its_weight_back(world: &World) {
    let first = world.held_by(0).await;
    let silent = waiting_reader(world);
    let writer = world.waiting();
    world.queued(1, &silent).await;
    world.queued(2, &writer).await;
    world.release(0, &first).await;
    let burnt = world.hand_off(1, &silent).await;
    world.advance_ms(CLAIM_MS).await;
    let told = only(world.touch(2).await.held).expect("the writer is next");
    assert_eq!(told.request, writer.request);
    let burnt = lease(&silent, burnt.fencing_token);
    assert_eq!(world.renew(1, &burnt).await, Renewed::NotFound);
    assert_eq!(world.state().await.queue_length, 1);
    world.release(2, &lease(&writer, told.fencing_token)).await;
    world.granted(1, &again(&silent)).await;
}

pub async fn t15_each_reader_expires_by_itself(world: &World) {
    let dead = world.granted(0, &reader(world)).await;
    let live = world.granted(0, &reader(world)).await;
    let writer = world.waiting();
    world.queued(0, &writer).await;
    world.advance_ms(expiry_ms(TTL_MS) - SLACK_MS).await;
    world.renewed(0, &live).await;
    world.advance_ms(SLACK_MS).await;
    assert_eq!(world.renew(0, &dead).await, Renewed::Expired);
    let state = world.state().await;
    assert_eq!((state.holder_count, state.queue_length), (1, 1));
    world.release(0, &live).await;
    world.handed(0, &writer).await;
}

pub async fn a_waiter_is_told_when_the_first_reader_may_expire(world: &World) {
    world.granted(0, &with_ttl(reader(world), 60_000)).await;
    world.granted(0, &reader(world)).await;
    let next_event_ms = world.queued(0, &world.waiting()).await;
    assert_left(next_event_ms, expiry_ms(TTL_MS));
}

pub async fn t17_a_writer_that_gives_up_stops_no_reader(world: &World) {
    world.granted(0, &reader(world)).await;
    let writer = world.waiting();
    let behind = waiting_reader(world);
    world.queued(0, &writer).await;
    world.queued(0, &behind).await;
    assert_eq!(world.cancel(0, &writer).await, Cancelled::Dequeued);
    world.handed(0, &behind).await;
    world.granted(0, &reader(world)).await;
    assert_eq!(world.state().await.holder_count, 3);
}

pub async fn t17_a_writer_whose_broker_is_silent_stops_no_reader(world: &World) {
    let held = world.granted(0, &with_ttl(reader(world), 60_000)).await;
    world.queued(1, &world.waiting()).await;
    let behind = waiting_reader(world);
    world.queued(0, &behind).await;
    world.pass_ms(7_500, &[0]).await;
    let told = world.touch(0).await.held;
    assert!(told.iter().any(|told| told.request == behind.request));
    world.renewed(0, &held).await;
}

pub async fn a_reader_releases_its_own_hold_only(world: &World) {
    let first = world.granted(0, &reader(world)).await;
    let second = world.granted(0, &reader(world)).await;
    let third = world.granted(0, &reader(world)).await;
    world.release(0, &second).await;
    assert_eq!(world.renew(0, &second).await, Renewed::Released);
    world.renewed(0, &first).await;
    world.renewed(0, &third).await;
    assert_eq!(world.state().await.holder_count, 2);
}

pub async fn a_repeat_of_a_reader_finds_its_own_lease(world: &World) {
    let calls = [(); 3].map(|()| reader(world));
    let mut leases = Vec::new();
    for call in &calls {
        leases.push(world.granted(0, call).await);
    }
    for (call, lease) in calls.iter().zip(&leases) {
        assert_eq!(&world.granted(1, &again(call)).await, lease);
    }
    assert_eq!(world.state().await.holder_count, 3);
}

pub async fn hundreds_of_readers_enter_in_one_release(world: &World) {
    const READERS: usize = 200;
    let writer = world.held_by(0).await;
    let mut calls = Vec::new();
    for index in 0..READERS {
        let call = waiting_reader(world);
        world.queued(index % 2, &call).await;
        calls.push(call);
    }
    world.release(0, &writer).await;
    let mut tokens = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        tokens.push(world.handed(index % 2, call).await.fencing_token);
    }
    assert!(tokens.is_sorted(), "in the order of the line");
    let state = world.state().await;
    assert_eq!((state.holder_count, state.queue_length), (200, 0));
}

pub async fn a_thousand_hold_and_the_next_waits(world: &World) {
    let mut leases = Vec::new();
    for _ in 0..1_000 {
        let call = with_ttl(reader(world), 60_000);
        leases.push(world.granted(0, &call).await);
    }
    let contention = world.refused(0, &reader(world)).await;
    assert_eq!(contention.holders.len(), 5);
    let waits = waiting_reader(world);
    world.queued(0, &waits).await;
    let state = world.state().await;
    assert_eq!((state.holders.len(), state.holder_count), (100, 1_000));
    world.release(0, &leases[499]).await;
    world.handed(0, &waits).await;
    assert_eq!(world.state().await.holder_count, 1_000);
}

pub async fn each_of_hundreds_of_tokens_is_live_until_its_release(world: &World) {
    let mut leases = Vec::new();
    for _ in 0..300 {
        let call = with_ttl(reader(world), TTL_MAX_MS);
        leases.push(world.granted(0, &call).await);
    }
    world.release(0, &leases[150]).await;
    for (index, lease) in leases.iter().enumerate() {
        let checked = world.store(1).check(&world.lock, lease.fencing_token);
        let live = matches!(checked.await, Ok(Checked::Live { .. }));
        assert_eq!(live, index != 150, "{index}");
    }
}

pub async fn a_token_that_was_never_given_is_stale_or_unknown(world: &World) {
    let token = FencingToken::new(7).expect("a token");
    let unknown = world.store(0).check(&world.lock, token).await;
    assert_eq!(unknown, Ok(Checked::Unknown));
    let newest = world.held_by(0).await.fencing_token.get();
    let stale = world.store(0).check(&world.lock, token).await;
    assert_eq!(stale, Ok(Checked::Stale { newest }));
}

pub async fn readers_that_expire_together_are_all_remembered(world: &World) {
    let mut leases = Vec::new();
    for _ in 0..50 {
        leases.push(world.granted(0, &reader(world)).await);
    }
    world.advance_ms(expiry_ms(TTL_MS)).await;
    world.granted(0, &world.call()).await;
    for lease in &leases {
        assert_eq!(world.renew(0, lease).await, Renewed::Expired);
    }
}

pub async fn waiters_are_shown_with_their_modes(world: &World) {
    world.held_by(0).await;
    world.queued(0, &waiting_reader(world)).await;
    world.queued(0, &world.waiting()).await;
    let waiters = world.state().await.waiters.into_iter();
    let modes: Vec<_> = waiters.map(|waits| waits.mode).collect();
    assert_eq!(modes, [Mode::Shared, Mode::Exclusive]);
}

/// The read/write tables of the seeds: who may enter beside whom.
pub async fn seed_read_locks_admit_readers_and_keep_writers_out(world: &World) {
    let first = world.granted(0, &reader(world)).await;
    let second = world.granted(1, &reader(world)).await;
    world.refused(0, &world.call()).await;
    world.release(0, &first).await;
    world.refused(0, &world.call()).await;
    world.release(1, &second).await;
    world.granted(0, &world.call()).await;
}

/// The read/write tables of the seeds: a writer keeps everybody out.
pub async fn seed_a_write_lock_keeps_readers_and_writers_out(world: &World) {
    let writer = world.granted(0, &world.call()).await;
    for call in [reader(world), world.call()] {
        world.refused(1, &call).await;
    }
    world.release(0, &writer).await;
    world.granted(1, &reader(world)).await;
}
