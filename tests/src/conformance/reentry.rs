//! Re-entry: a lease that holds a lock enters it again, and leaves it entry by entry.

use leasehold_server::{
    lock::{ArgumentsHash, ENTRIES_MAX, Mode, TOMBSTONE_MS, WHOLE, expiry_ms},
    store::{Acquired, Cancelled, Released, Renewed},
};

use crate::world::{
    SLACK_MS, TTL_MS, World, again, assert_left, only, with_mode, with_terms, with_ttl,
};

pub async fn a_lease_enters_its_lock_again_with_the_same_token(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    assert_eq!(world.entered(0, &world.entry(&lease)).await, 2);
    assert_eq!(world.entered(1, &world.entry(&lease)).await, 3);
    let holder = only(world.state().await.holders).expect("one holder");
    assert_eq!(holder.lease_id, lease.lease_id);
    assert_eq!(holder.fencing_token, lease.fencing_token);
}

pub async fn t21_a_repeated_entry_counts_once(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    let entry = world.entry(&lease);
    assert_eq!(world.entered(0, &entry).await, 2);
    assert_eq!(world.entered(0, &entry).await, 2);
    assert_eq!(world.entered(1, &again(&entry)).await, 2);
}

pub async fn t21_a_repeated_leave_counts_once(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    let (one, two) = (world.entry(&lease), world.entry(&lease));
    world.entered(0, &one).await;
    world.entered(0, &two).await;
    let left = world.leave(0, &lease, &one).await;
    assert_eq!(left, Released::Now { hold_count: 2 });
    let left = world.leave(1, &lease, &one).await;
    assert_eq!(left, Released::Already { hold_count: 2 });
    world.renewed(0, &lease).await;
}

pub async fn the_lock_is_free_when_the_last_entry_has_left_in_any_order(world: &World) {
    let first = world.call();
    let lease = world.granted(0, &first).await;
    let (one, two) = (world.entry(&lease), world.entry(&lease));
    world.entered(0, &one).await;
    world.entered(0, &two).await;
    let waiter = world.waiting();
    world.queued(1, &waiter).await;
    for (entry, hold_count) in [(&first, 2), (&two, 1)] {
        let left = world.leave(0, &lease, entry).await;
        assert_eq!(left, Released::Now { hold_count });
        world.renewed(0, &lease).await;
    }
    let left = world.leave(0, &lease, &one).await;
    assert_eq!(left, Released::Now { hold_count: 0 });
    world.handed(1, &waiter).await;
    assert_eq!(world.renew(0, &lease).await, Renewed::Released);
}

pub async fn a_release_of_the_lease_ends_every_entry(world: &World) {
    let first = world.call();
    let lease = world.granted(0, &first).await;
    let entry = world.entry(&lease);
    world.entered(0, &entry).await;
    let released = world.release(0, &lease).await;
    assert_eq!(released, Released::Now { hold_count: 0 });
    let left = world.leave(0, &lease, &entry).await;
    assert_eq!(left, Released::Already { hold_count: 0 });
    for late in [again(&first), again(&entry)] {
        assert_eq!(world.acquire(0, &late).await, Acquired::Ended);
    }
    world.granted(1, &world.call()).await;
}

pub async fn an_entry_needs_the_token_of_the_hold(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    let mut stale = lease.clone();
    stale.fencing_token = leasehold_server::lock::FencingToken::new(1).expect("a token");
    let reply = world.acquire(0, &world.entry(&stale)).await;
    assert_eq!(reply, Acquired::NotFound);
    assert_eq!(world.entered(0, &world.entry(&lease)).await, 2);
}

pub async fn an_entry_after_the_end_of_the_lease_is_refused(world: &World) {
    let released = world.granted(0, &world.call()).await;
    world.release(0, &released).await;
    let expired = world.granted(0, &world.call()).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    for lease in [released, expired] {
        let reply = world.acquire(0, &world.entry(&lease)).await;
        assert_eq!(reply, Acquired::Ended);
    }
    world.granted(0, &world.call()).await;
}

pub async fn an_entry_never_waits(world: &World) {
    let lease = world.held_by(0).await;
    world.queued(1, &world.waiting()).await;
    let mut entry = world.entry(&lease);
    entry.wait_ms = 1_000;
    assert_eq!(world.entered(2, &entry).await, 2);
    assert_eq!(world.state().await.queue_length, 1);
}

pub async fn t19_an_entry_renews_and_adds_nothing_up(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    world.advance_ms(5_000).await;
    for _ in 0..3 {
        world.entered(0, &world.entry(&lease)).await;
    }
    let holder = only(world.state().await.holders).expect("held");
    assert_left(holder.remaining_ms, expiry_ms(TTL_MS));
    world.advance_ms(expiry_ms(TTL_MS)).await;
    world.granted(1, &world.call()).await;
}

pub async fn an_entry_keeps_the_ttl_of_the_lease(world: &World) {
    let lease = world.held_by(0).await;
    let entry = with_ttl(world.entry(&lease), 1_000);
    world.entered(0, &entry).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    world.renewed(0, &lease).await;
}

pub async fn a_repeated_entry_with_other_arguments_is_refused(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    let entry = world.entry(&lease);
    world.entered(0, &entry).await;
    let mut other = again(&entry);
    other.arguments = ArgumentsHash::of(&[b"others"]);
    assert_eq!(world.acquire(0, &other).await, Acquired::RequestIdReused);
    assert_eq!(world.entered(0, &world.entry(&lease)).await, 3);
}

pub async fn t22_the_same_owner_without_the_lease_does_not_enter(world: &World) {
    let call = world.call();
    world.granted(0, &call).await;
    let mut stranger = world.call();
    stranger.owner = call.owner;
    world.refused(0, &stranger).await;
}

pub async fn t20_leaving_the_last_exclusive_entry_is_the_downgrade(world: &World) {
    let writer = with_ttl(world.call(), 60_000);
    let lease = world.granted(0, &writer).await;
    let reader = with_mode(world.entry(&lease), Mode::Shared);
    assert_eq!(world.entered(0, &reader).await, 2);
    let beside = with_mode(world.waiting(), Mode::Shared);
    world.queued(1, &beside).await;
    let behind = world.waiting();
    world.queued(1, &behind).await;
    let left = world.leave(0, &lease, &writer).await;
    assert_eq!(left, Released::Now { hold_count: 1 });
    world.handed(1, &beside).await;
    world.renewed(0, &lease).await;
    let state = world.state().await;
    assert_eq!((state.holder_count, state.queue_length), (2, 1));
    let mut shown = state.holders.iter();
    assert!(shown.all(|held| held.mode == Mode::Shared), "{state:?}");
    let kept = state.holders.iter().map(|held| held.fencing_token);
    assert!(kept.into_iter().any(|token| token == lease.fencing_token));
}

pub async fn leaving_one_of_two_exclusive_entries_is_no_downgrade(world: &World) {
    let writer = world.call();
    let lease = world.granted(0, &writer).await;
    let reader = with_mode(world.entry(&lease), Mode::Shared);
    world.entered(0, &reader).await;
    world.entered(0, &world.entry(&lease)).await;
    let left = world.leave(0, &lease, &writer).await;
    assert_eq!(left, Released::Now { hold_count: 2 });
    world
        .refused(1, &with_mode(world.call(), Mode::Shared))
        .await;
}

pub async fn t18_shared_to_exclusive_is_denied(world: &World) {
    let reader = with_mode(world.call(), Mode::Shared);
    let lease = world.granted(0, &reader).await;
    let upgrade = world.entry(&lease);
    let reply = world.acquire(0, &upgrade).await;
    assert_eq!(reply, Acquired::UpgradeDenied);
    world
        .granted(1, &with_mode(world.call(), Mode::Shared))
        .await;
    world.renewed(0, &lease).await;
    let left = world.leave(0, &lease, &upgrade).await;
    assert_eq!(left, Released::Already { hold_count: 1 });
}

pub async fn t18_after_a_downgrade_the_way_back_is_denied(world: &World) {
    let writer = world.call();
    let lease = world.granted(0, &writer).await;
    let reader = with_mode(world.entry(&lease), Mode::Shared);
    world.entered(0, &reader).await;
    world.leave(0, &lease, &writer).await;
    let reply = world.acquire(0, &world.entry(&lease)).await;
    assert_eq!(reply, Acquired::UpgradeDenied);
}

pub async fn permits_enter_up_to_those_held(world: &World) {
    let permits = |permits| Mode::Semaphore { permits, limit: 5 };
    let first = with_mode(world.call(), permits(3));
    let lease = world.granted(0, &first).await;
    let two = with_mode(world.entry(&lease), permits(2));
    assert_eq!(world.entered(0, &two).await, 2);
    let four = with_mode(world.entry(&lease), permits(4));
    assert_eq!(world.acquire(0, &four).await, Acquired::UpgradeDenied);
    let three = with_mode(world.call(), permits(3));
    world.refused(1, &three).await;
    world.leave(0, &lease, &first).await;
    world.granted(1, &three).await;
    world.refused(1, &with_mode(world.call(), permits(1))).await;
}

pub async fn the_strongest_entry_left_counts(world: &World) {
    let permits = |permits| Mode::Semaphore { permits, limit: 5 };
    let first = with_mode(world.call(), permits(4));
    let lease = world.granted(0, &first).await;
    for count in [1, 3, 2] {
        let entry = with_mode(world.entry(&lease), permits(count));
        world.entered(0, &entry).await;
    }
    world.leave(0, &lease, &first).await;
    let holder = only(world.state().await.holders).expect("held");
    assert_eq!(holder.mode, permits(3));
    world.granted(1, &with_mode(world.call(), permits(2))).await;
}

pub async fn an_entry_of_another_kind_is_a_mismatch(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    let permit = Mode::Semaphore {
        permits: 1,
        limit: 5,
    };
    let entry = with_mode(world.entry(&lease), permit);
    assert_eq!(world.mismatch(0, &entry).await, WHOLE);
}

pub async fn t21_a_released_entry_is_refused_for_two_seconds(world: &World) {
    let lease = world.held_by(0).await;
    let entry = world.entry(&lease);
    world.entered(0, &entry).await;
    world.leave(0, &lease, &entry).await;
    world.advance_ms(TOMBSTONE_MS - SLACK_MS).await;
    assert_eq!(world.acquire(1, &again(&entry)).await, Acquired::Ended);
    world.advance_ms(SLACK_MS).await;
    assert_eq!(world.entered(0, &again(&entry)).await, 2);
}

pub async fn t21_an_entry_that_comes_after_its_release_is_refused(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    let entry = world.entry(&lease);
    let left = world.leave(0, &lease, &entry).await;
    assert_eq!(left, Released::Already { hold_count: 1 });
    assert_eq!(world.acquire(0, &entry).await, Acquired::Ended);
}

pub async fn a_lease_enters_at_most_sixty_four_times(world: &World) {
    let lease = world.held_by(0).await;
    for count in 2..=u32::try_from(ENTRIES_MAX).expect("small") {
        assert_eq!(world.entered(0, &world.entry(&lease)).await, count);
    }
    let more = world.entry(&lease);
    assert_eq!(world.acquire(0, &more).await, Acquired::TooManyEntries);
    world.renewed(0, &lease).await;
    world.release(0, &lease).await;
    world.granted(0, &world.call()).await;
}

pub async fn cancelling_the_last_attempt_of_an_entry_takes_only_that_entry(world: &World) {
    let lease = world.held_by(0).await;
    let entry = world.entry(&lease);
    world.entered(0, &entry).await;
    let second = again(&entry);
    world.entered(1, &second).await;
    assert_eq!(world.cancel(0, &entry).await, Cancelled::Kept);
    assert_eq!(world.cancel(1, &second).await, Cancelled::Freed);
    // At the same broker: of several nodes, one may hear another broker's cancel later.
    assert_eq!(world.entered(1, &world.entry(&lease)).await, 2);
}

pub async fn cancelling_the_call_that_made_the_lease_leaves_its_other_entries(world: &World) {
    let first = world.call();
    let lease = world.granted(0, &first).await;
    world.entered(0, &world.entry(&lease)).await;
    assert_eq!(world.cancel(0, &first).await, Cancelled::Freed);
    world.renewed(0, &lease).await;
    assert_eq!(world.acquire(0, &again(&first)).await, Acquired::Ended);
    world.refused(1, &world.call()).await;
}

pub async fn the_call_that_made_the_lease_is_over_once_its_entry_has_left(world: &World) {
    let first = with_ttl(world.call(), 60_000);
    let lease = world.granted(0, &first).await;
    world.entered(0, &world.entry(&lease)).await;
    world.leave(0, &lease, &first).await;
    world.advance_ms(2 * TOMBSTONE_MS).await;
    assert_eq!(world.acquire(0, &again(&first)).await, Acquired::Ended);
    world.renewed(0, &lease).await;
}

pub async fn an_expiry_ends_every_entry(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    let entry = world.entry(&lease);
    world.entered(0, &entry).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    assert_eq!(world.leave(0, &lease, &entry).await, Released::Expired);
    let next = world.granted(1, &world.call()).await;
    assert_eq!(world.acquire(0, &again(&entry)).await, Acquired::Ended);
    assert_eq!(world.entered(1, &world.entry(&next)).await, 2);
}

pub async fn nobody_enters_past_max_hold(world: &World) {
    let call = with_terms(with_ttl(world.call(), 60_000), 5_000, 0);
    let lease = world.granted(0, &call).await;
    world.advance_ms(5_000).await;
    let reply = world.acquire(0, &world.entry(&lease)).await;
    assert_eq!(reply, Acquired::Ended);
}

pub async fn one_reader_of_many_enters_and_leaves(world: &World) {
    let mut readers = Vec::new();
    for _ in 0..5 {
        let reader = with_mode(with_ttl(world.call(), 60_000), Mode::Shared);
        readers.push((world.granted(0, &reader).await, reader));
    }
    let (lease, first) = &readers[3];
    let entry = with_mode(world.entry(lease), Mode::Shared);
    assert_eq!(world.entered(0, &entry).await, 2);
    let left = world.leave(0, lease, first).await;
    assert_eq!(left, Released::Now { hold_count: 1 });
    assert_eq!(world.entered(0, &again(&entry)).await, 1);
    let left = world.leave(0, lease, &entry).await;
    assert_eq!(left, Released::Now { hold_count: 0 });
    assert_eq!(world.state().await.holder_count, 4);
}

/// The re-entrant lock of the seeds: its unlock answers nil to a stranger, 0 while the lock is still
/// held, and 1 when it is free.
pub async fn seed_reentrant_unlock_answers_nil_0_and_1(world: &World) {
    let first = world.call();
    let lease = world.granted(0, &first).await;
    let inner = world.entry(&lease);
    assert_eq!(world.entered(0, &inner).await, 2);
    let mut stranger = lease.clone();
    stranger.lease_id = world.call().lease_id;
    assert_eq!(world.release(1, &stranger).await, Released::NotFound);
    let left = world.leave(0, &lease, &inner).await;
    assert_eq!(left, Released::Now { hold_count: 1 });
    let left = world.leave(0, &lease, &first).await;
    assert_eq!(left, Released::Now { hold_count: 0 });
    world.granted(1, &world.call()).await;
}
