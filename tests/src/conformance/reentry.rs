//! Re-entry: a lease that holds a lock enters it again, and releases it entry by entry.

use leasehold_server::{
    lock::{ArgumentsHash, ENTRIES_MAX, EXCLUSIVE_WEIGHT, Mode, TOMBSTONE_MS, expiry_ms},
    store::{Acquired, Cancelled, LeaseRejection},
};

use crate::store_fixture::{
    SLACK_MS, StoreFixture, TTL_MS, assert_remaining, at_most_one, new_attempt, released_before,
    released_now, with_hold_and_delay, with_mode, with_ttl,
};

pub async fn a_lease_enters_its_lock_again_with_the_same_token(store_fixture: &StoreFixture) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    assert_eq!(
        store_fixture
            .expect_reentered(0, &store_fixture.reentry_call(&lease))
            .await,
        2
    );
    assert_eq!(
        store_fixture
            .expect_reentered(1, &store_fixture.reentry_call(&lease))
            .await,
        3
    );
    let holder = at_most_one(store_fixture.expect_state().await.holders).expect("one holder");
    assert_eq!(holder.lease_id, lease.lease_id);
    assert_eq!(holder.fencing_token, lease.fencing_token);
}

pub async fn t21_a_repeated_entry_counts_once(store_fixture: &StoreFixture) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    let entry = store_fixture.reentry_call(&lease);
    assert_eq!(store_fixture.expect_reentered(0, &entry).await, 2);
    assert_eq!(store_fixture.expect_reentered(0, &entry).await, 2);
    assert_eq!(
        store_fixture
            .expect_reentered(1, &new_attempt(&entry))
            .await,
        2
    );
}

pub async fn t21_a_repeated_release_of_an_entry_counts_once(store_fixture: &StoreFixture) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    let (one, two) = (
        store_fixture.reentry_call(&lease),
        store_fixture.reentry_call(&lease),
    );
    store_fixture.expect_reentered(0, &one).await;
    store_fixture.expect_reentered(0, &two).await;
    let left = store_fixture.release_entry(0, &lease, &one).await;
    assert_eq!(left, released_now(2));
    let left = store_fixture.release_entry(1, &lease, &one).await;
    assert_eq!(left, released_before(2));
    store_fixture.expect_renewed(0, &lease).await;
}

/// A call of the lease enters the lock while the holder releases the entry that it knows of.
pub async fn a_lock_whose_last_entry_is_rolled_back_after_a_release_is_reported_as_released(
    store_fixture: &StoreFixture,
) {
    let call = store_fixture.call();
    let lease = store_fixture.expect_granted(0, &call).await;
    let entry = store_fixture.reentry_call(&lease);
    store_fixture.expect_reentered(0, &entry).await;
    let left = store_fixture.release_entry(0, &lease, &call).await;
    assert_eq!(left, released_now(1));
    assert_eq!(store_fixture.cancel(0, &entry).await, Cancelled::Freed);
    assert_eq!(
        store_fixture.renew(0, &lease).await,
        Err(LeaseRejection::Released)
    );
    let already = released_before(0);
    assert_eq!(store_fixture.release(0, &lease).await, already);
    store_fixture.acquire_long(0).await;
    assert_eq!(
        store_fixture.renew(0, &lease).await,
        Err(LeaseRejection::Released)
    );
}

pub async fn the_lock_is_free_when_the_last_entry_has_left_in_any_order(
    store_fixture: &StoreFixture,
) {
    let first = store_fixture.call();
    let lease = store_fixture.expect_granted(0, &first).await;
    let (one, two) = (
        store_fixture.reentry_call(&lease),
        store_fixture.reentry_call(&lease),
    );
    store_fixture.expect_reentered(0, &one).await;
    store_fixture.expect_reentered(0, &two).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &waiter).await;
    for (entry, hold_count) in [(&first, 2), (&two, 1)] {
        let left = store_fixture.release_entry(0, &lease, entry).await;
        assert_eq!(left, released_now(hold_count));
        store_fixture.expect_renewed(0, &lease).await;
    }
    let left = store_fixture.release_entry(0, &lease, &one).await;
    assert_eq!(left, released_now(0));
    store_fixture.claim_next_hand_off(1, &waiter).await;
    assert_eq!(
        store_fixture.renew(0, &lease).await,
        Err(LeaseRejection::Released)
    );
}

pub async fn a_release_of_the_lease_ends_every_entry(store_fixture: &StoreFixture) {
    let first = store_fixture.call();
    let lease = store_fixture.expect_granted(0, &first).await;
    let entry = store_fixture.reentry_call(&lease);
    store_fixture.expect_reentered(0, &entry).await;
    let released = store_fixture.release(0, &lease).await;
    assert_eq!(released, released_now(0));
    let left = store_fixture.release_entry(0, &lease, &entry).await;
    assert_eq!(left, released_before(0));
    for late in [new_attempt(&first), new_attempt(&entry)] {
        assert_eq!(store_fixture.acquire(0, &late).await, Acquired::Ended);
    }
    store_fixture.expect_granted(1, &store_fixture.call()).await;
}

pub async fn an_entry_needs_the_token_of_the_hold(store_fixture: &StoreFixture) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    let mut stale = lease.clone();
    stale.fencing_token = leasehold_server::lock::FencingToken::new(1).expect("a token");
    let reply = store_fixture
        .acquire(0, &store_fixture.reentry_call(&stale))
        .await;
    assert_eq!(reply, Acquired::NotFound);
    assert_eq!(
        store_fixture
            .expect_reentered(0, &store_fixture.reentry_call(&lease))
            .await,
        2
    );
}

pub async fn an_entry_after_the_end_of_the_lease_is_refused(store_fixture: &StoreFixture) {
    let released = store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture.expect_released(0, &released).await;
    let expired = store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    for lease in [released, expired] {
        let reply = store_fixture
            .acquire(0, &store_fixture.reentry_call(&lease))
            .await;
        assert_eq!(reply, Acquired::Ended);
    }
    store_fixture.expect_granted(0, &store_fixture.call()).await;
}

pub async fn an_entry_never_waits(store_fixture: &StoreFixture) {
    let lease = store_fixture.acquire_long(0).await;
    store_fixture
        .expect_queued(1, &store_fixture.waiting_call())
        .await;
    let mut entry = store_fixture.reentry_call(&lease);
    entry.wait_ms = 1_000;
    assert_eq!(store_fixture.expect_reentered(2, &entry).await, 2);
    assert_eq!(store_fixture.expect_state().await.queue_length, 1);
}

pub async fn t19_an_entry_renews_and_adds_nothing_up(store_fixture: &StoreFixture) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture.advance_ms(5_000).await;
    for _ in 0..3 {
        store_fixture
            .expect_reentered(0, &store_fixture.reentry_call(&lease))
            .await;
    }
    let holder = at_most_one(store_fixture.expect_state().await.holders).expect("held");
    assert_remaining(holder.remaining_ms, expiry_ms(TTL_MS));
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    store_fixture.expect_granted(1, &store_fixture.call()).await;
}

pub async fn an_entry_keeps_the_ttl_of_the_lease(store_fixture: &StoreFixture) {
    let lease = store_fixture.acquire_long(0).await;
    let entry = with_ttl(store_fixture.reentry_call(&lease), 1_000);
    store_fixture.expect_reentered(0, &entry).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    store_fixture.expect_renewed(0, &lease).await;
}

pub async fn a_repeated_entry_with_other_arguments_is_refused(store_fixture: &StoreFixture) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    let entry = store_fixture.reentry_call(&lease);
    store_fixture.expect_reentered(0, &entry).await;
    let mut other = new_attempt(&entry);
    other.arguments = ArgumentsHash::of(&[b"others"]);
    assert_eq!(
        store_fixture.acquire(0, &other).await,
        Acquired::RequestIdReused
    );
    assert_eq!(
        store_fixture
            .expect_reentered(0, &store_fixture.reentry_call(&lease))
            .await,
        3
    );
}

pub async fn t22_the_same_owner_without_the_lease_does_not_enter(store_fixture: &StoreFixture) {
    let call = store_fixture.call();
    store_fixture.expect_granted(0, &call).await;
    let mut stranger = store_fixture.call();
    stranger.owner = call.owner;
    store_fixture.expect_held(0, &stranger).await;
}

pub async fn t20_leaving_the_last_exclusive_entry_is_the_downgrade(store_fixture: &StoreFixture) {
    let writer = with_ttl(store_fixture.call(), 60_000);
    let lease = store_fixture.expect_granted(0, &writer).await;
    let reader = with_mode(store_fixture.reentry_call(&lease), Mode::Shared);
    assert_eq!(store_fixture.expect_reentered(0, &reader).await, 2);
    let beside = with_mode(store_fixture.waiting_call(), Mode::Shared);
    store_fixture.expect_queued(1, &beside).await;
    let behind = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &behind).await;
    let left = store_fixture.release_entry(0, &lease, &writer).await;
    assert_eq!(left, released_now(1));
    store_fixture.claim_next_hand_off(1, &beside).await;
    store_fixture.expect_renewed(0, &lease).await;
    let state = store_fixture.expect_state().await;
    assert_eq!((state.holder_count, state.queue_length), (2, 1));
    let mut holders = state.holders.iter();
    assert!(holders.all(|held| held.mode == Mode::Shared), "{state:?}");
    let kept = state.holders.iter().map(|held| held.fencing_token);
    assert!(kept.into_iter().any(|token| token == lease.fencing_token));
}

pub async fn leaving_one_of_two_exclusive_entries_is_no_downgrade(store_fixture: &StoreFixture) {
    let writer = store_fixture.call();
    let lease = store_fixture.expect_granted(0, &writer).await;
    let reader = with_mode(store_fixture.reentry_call(&lease), Mode::Shared);
    store_fixture.expect_reentered(0, &reader).await;
    store_fixture
        .expect_reentered(0, &store_fixture.reentry_call(&lease))
        .await;
    let left = store_fixture.release_entry(0, &lease, &writer).await;
    assert_eq!(left, released_now(2));
    store_fixture
        .expect_held(1, &with_mode(store_fixture.call(), Mode::Shared))
        .await;
}

pub async fn t18_shared_to_exclusive_is_denied(store_fixture: &StoreFixture) {
    let reader = with_mode(store_fixture.call(), Mode::Shared);
    let lease = store_fixture.expect_granted(0, &reader).await;
    let upgrade = store_fixture.reentry_call(&lease);
    let reply = store_fixture.acquire(0, &upgrade).await;
    assert_eq!(reply, Acquired::UpgradeDenied);
    store_fixture
        .expect_granted(1, &with_mode(store_fixture.call(), Mode::Shared))
        .await;
    store_fixture.expect_renewed(0, &lease).await;
    let left = store_fixture.release_entry(0, &lease, &upgrade).await;
    assert_eq!(left, released_before(1));
}

pub async fn t18_after_a_downgrade_the_way_back_is_denied(store_fixture: &StoreFixture) {
    let writer = store_fixture.call();
    let lease = store_fixture.expect_granted(0, &writer).await;
    let reader = with_mode(store_fixture.reentry_call(&lease), Mode::Shared);
    store_fixture.expect_reentered(0, &reader).await;
    store_fixture
        .release_entry(0, &lease, &writer)
        .await
        .expect("released");
    let reply = store_fixture
        .acquire(0, &store_fixture.reentry_call(&lease))
        .await;
    assert_eq!(reply, Acquired::UpgradeDenied);
}

pub async fn permits_enter_up_to_those_held(store_fixture: &StoreFixture) {
    let permits = |permits| Mode::Semaphore { permits, limit: 5 };
    let first = with_mode(store_fixture.call(), permits(3));
    let lease = store_fixture.expect_granted(0, &first).await;
    let two = with_mode(store_fixture.reentry_call(&lease), permits(2));
    assert_eq!(store_fixture.expect_reentered(0, &two).await, 2);
    let four = with_mode(store_fixture.reentry_call(&lease), permits(4));
    assert_eq!(
        store_fixture.acquire(0, &four).await,
        Acquired::UpgradeDenied
    );
    let three = with_mode(store_fixture.call(), permits(3));
    store_fixture.expect_held(1, &three).await;
    store_fixture
        .release_entry(0, &lease, &first)
        .await
        .expect("released");
    store_fixture.expect_granted(1, &three).await;
    store_fixture
        .expect_held(1, &with_mode(store_fixture.call(), permits(1)))
        .await;
}

pub async fn the_strongest_entry_left_counts(store_fixture: &StoreFixture) {
    let permits = |permits| Mode::Semaphore { permits, limit: 5 };
    let first = with_mode(store_fixture.call(), permits(4));
    let lease = store_fixture.expect_granted(0, &first).await;
    for count in [1, 3, 2] {
        let entry = with_mode(store_fixture.reentry_call(&lease), permits(count));
        store_fixture.expect_reentered(0, &entry).await;
    }
    store_fixture
        .release_entry(0, &lease, &first)
        .await
        .expect("released");
    let holder = at_most_one(store_fixture.expect_state().await.holders).expect("held");
    assert_eq!(holder.mode, permits(3));
    store_fixture
        .expect_granted(1, &with_mode(store_fixture.call(), permits(2)))
        .await;
}

pub async fn an_entry_of_another_kind_is_a_mismatch(store_fixture: &StoreFixture) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    let permit = Mode::Semaphore {
        permits: 1,
        limit: 5,
    };
    let entry = with_mode(store_fixture.reentry_call(&lease), permit);
    assert_eq!(
        store_fixture.expect_limit_mismatch(0, &entry).await,
        Some(EXCLUSIVE_WEIGHT)
    );
}

pub async fn t21_a_released_entry_is_refused_for_two_seconds(store_fixture: &StoreFixture) {
    let lease = store_fixture.acquire_long(0).await;
    let entry = store_fixture.reentry_call(&lease);
    store_fixture.expect_reentered(0, &entry).await;
    store_fixture
        .release_entry(0, &lease, &entry)
        .await
        .expect("released");
    store_fixture.advance_ms(TOMBSTONE_MS - SLACK_MS).await;
    assert_eq!(
        store_fixture.acquire(1, &new_attempt(&entry)).await,
        Acquired::Ended
    );
    store_fixture.advance_ms(SLACK_MS).await;
    assert_eq!(
        store_fixture
            .expect_reentered(0, &new_attempt(&entry))
            .await,
        2
    );
}

pub async fn t21_an_entry_that_comes_after_its_release_is_refused(store_fixture: &StoreFixture) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    let entry = store_fixture.reentry_call(&lease);
    let left = store_fixture.release_entry(0, &lease, &entry).await;
    assert_eq!(left, released_before(1));
    assert_eq!(store_fixture.acquire(0, &entry).await, Acquired::Ended);
}

pub async fn a_lease_enters_at_most_sixty_four_times(store_fixture: &StoreFixture) {
    let lease = store_fixture.acquire_long(0).await;
    for count in 2..=u32::try_from(ENTRIES_MAX).expect("small") {
        assert_eq!(
            store_fixture
                .expect_reentered(0, &store_fixture.reentry_call(&lease))
                .await,
            count
        );
    }
    let more = store_fixture.reentry_call(&lease);
    assert_eq!(
        store_fixture.acquire(0, &more).await,
        Acquired::TooManyEntries
    );
    store_fixture.expect_renewed(0, &lease).await;
    store_fixture.expect_released(0, &lease).await;
    store_fixture.expect_granted(0, &store_fixture.call()).await;
}

pub async fn cancelling_the_last_attempt_of_an_entry_takes_only_that_entry(
    store_fixture: &StoreFixture,
) {
    let lease = store_fixture.acquire_long(0).await;
    let entry = store_fixture.reentry_call(&lease);
    store_fixture.expect_reentered(0, &entry).await;
    let second = new_attempt(&entry);
    store_fixture.expect_reentered(1, &second).await;
    assert_eq!(store_fixture.cancel(0, &entry).await, Cancelled::Kept);
    assert_eq!(store_fixture.cancel(1, &second).await, Cancelled::Freed);
    // Uses the same broker: one of several nodes may receive a cancel of another broker later.
    assert_eq!(
        store_fixture
            .expect_reentered(1, &store_fixture.reentry_call(&lease))
            .await,
        2
    );
}

pub async fn cancelling_the_call_that_made_the_lease_leaves_its_other_entries(
    store_fixture: &StoreFixture,
) {
    let first = store_fixture.call();
    let lease = store_fixture.expect_granted(0, &first).await;
    store_fixture
        .expect_reentered(0, &store_fixture.reentry_call(&lease))
        .await;
    assert_eq!(store_fixture.cancel(0, &first).await, Cancelled::Freed);
    store_fixture.expect_renewed(0, &lease).await;
    assert_eq!(
        store_fixture.acquire(0, &new_attempt(&first)).await,
        Acquired::Ended
    );
    store_fixture.expect_held(1, &store_fixture.call()).await;
}

pub async fn the_call_that_created_the_lease_has_ended_after_its_entry_is_released(
    store_fixture: &StoreFixture,
) {
    let first = with_ttl(store_fixture.call(), 60_000);
    let lease = store_fixture.expect_granted(0, &first).await;
    store_fixture
        .expect_reentered(0, &store_fixture.reentry_call(&lease))
        .await;
    store_fixture
        .release_entry(0, &lease, &first)
        .await
        .expect("released");
    store_fixture.advance_ms(2 * TOMBSTONE_MS).await;
    assert_eq!(
        store_fixture.acquire(0, &new_attempt(&first)).await,
        Acquired::Ended
    );
    store_fixture.expect_renewed(0, &lease).await;
}

pub async fn an_expiry_ends_every_entry(store_fixture: &StoreFixture) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    let entry = store_fixture.reentry_call(&lease);
    store_fixture.expect_reentered(0, &entry).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    assert_eq!(
        store_fixture.release_entry(0, &lease, &entry).await,
        Err(LeaseRejection::Expired)
    );
    let next = store_fixture.expect_granted(1, &store_fixture.call()).await;
    assert_eq!(
        store_fixture.acquire(0, &new_attempt(&entry)).await,
        Acquired::Ended
    );
    assert_eq!(
        store_fixture
            .expect_reentered(1, &store_fixture.reentry_call(&next))
            .await,
        2
    );
}

pub async fn entering_past_max_hold_is_refused(store_fixture: &StoreFixture) {
    let call = with_hold_and_delay(with_ttl(store_fixture.call(), 60_000), 5_000, 0);
    let lease = store_fixture.expect_granted(0, &call).await;
    store_fixture.advance_ms(5_000).await;
    let reply = store_fixture
        .acquire(0, &store_fixture.reentry_call(&lease))
        .await;
    assert_eq!(reply, Acquired::Ended);
}

pub async fn one_reader_of_many_re_enters_and_releases_its_entry(store_fixture: &StoreFixture) {
    let mut readers = Vec::new();
    for _ in 0..5 {
        let reader = with_mode(with_ttl(store_fixture.call(), 60_000), Mode::Shared);
        readers.push((store_fixture.expect_granted(0, &reader).await, reader));
    }
    let (lease, first) = &readers[3];
    let entry = with_mode(store_fixture.reentry_call(lease), Mode::Shared);
    assert_eq!(store_fixture.expect_reentered(0, &entry).await, 2);
    let left = store_fixture.release_entry(0, lease, first).await;
    assert_eq!(left, released_now(1));
    assert_eq!(
        store_fixture
            .expect_reentered(0, &new_attempt(&entry))
            .await,
        1
    );
    let left = store_fixture.release_entry(0, lease, &entry).await;
    assert_eq!(left, released_now(0));
    assert_eq!(store_fixture.expect_state().await.holder_count, 4);
}

/// The re-entrant lock of the seeds: its unlock returns nil to another caller, 0 while the lock is
/// still held, and 1 when the lock is free.
pub async fn seed_reentrant_unlock_answers_nil_0_and_1(store_fixture: &StoreFixture) {
    let first = store_fixture.call();
    let lease = store_fixture.expect_granted(0, &first).await;
    let inner = store_fixture.reentry_call(&lease);
    assert_eq!(store_fixture.expect_reentered(0, &inner).await, 2);
    let mut stranger = lease.clone();
    stranger.lease_id = store_fixture.call().lease_id;
    assert_eq!(
        store_fixture.release(1, &stranger).await,
        Err(LeaseRejection::NotFound)
    );
    let left = store_fixture.release_entry(0, &lease, &inner).await;
    assert_eq!(left, released_now(1));
    let left = store_fixture.release_entry(0, &lease, &first).await;
    assert_eq!(left, released_now(0));
    store_fixture.expect_granted(1, &store_fixture.call()).await;
}
