//! Behaviours of common hand-written Redis locks (the seeds), checked on every store.

use leasehold_server::{
    lock::{FencingToken, expiry_ms},
    store::{Acquired, LeaseRejection},
};

use crate::store_fixture::{
    SLACK_MS, StoreFixture, TTL_MS, assert_remaining, at_most_one, released_now,
};

/// SETNX + EXPIRE: the holder and its expiry are set in one step.
pub async fn seed_try_lock_takes_lock_and_expiry_in_one_step(store_fixture: &StoreFixture) {
    let call = store_fixture.call();
    let lease = store_fixture.expect_granted(0, &call).await;
    let holder = at_most_one(store_fixture.expect_state().await.holders).expect("held");
    assert_eq!(holder.lease_id, call.lease_id);
    assert_eq!(holder.fencing_token, lease.fencing_token);
    assert_remaining(holder.remaining_ms, expiry_ms(TTL_MS));
}

/// SETNX by a second caller: rejected at once, with the current holder.
pub async fn seed_try_lock_of_a_held_lock_fails_at_once_and_names_the_holder(
    store_fixture: &StoreFixture,
) {
    let first = store_fixture.call();
    store_fixture.expect_granted(0, &first).await;
    let Acquired::Held(contention) = store_fixture.acquire(1, &store_fixture.call()).await else {
        panic!("two hold it");
    };
    assert_eq!(
        at_most_one(contention.holders).expect("held").owner,
        first.owner
    );
    assert_eq!(contention.queue_length, 0);
}

/// The blocking lock: waits in the queue instead of polling.
pub async fn seed_blocking_lock_is_granted_when_the_holder_releases(store_fixture: &StoreFixture) {
    let lease = store_fixture.acquire_long(0).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &waiter).await;
    store_fixture.expect_released(0, &lease).await;
    let next = store_fixture.claim_next_hand_off(1, &waiter).await;
    assert!(next.fencing_token > lease.fencing_token);
}

/// The blocking lock's time-out: a caller whose wait has ended is granted nothing.
pub async fn seed_blocking_lock_is_granted_nothing_after_its_time_out(
    store_fixture: &StoreFixture,
) {
    let lease = store_fixture.acquire_long(0).await;
    store_fixture
        .expect_queued(1, &store_fixture.waiting_call_for(5_000))
        .await;
    store_fixture.advance_ms(expiry_ms(5_000)).await;
    store_fixture.expect_released(0, &lease).await;
    assert_eq!(
        at_most_one(store_fixture.expect_state().await.holders),
        None
    );
    store_fixture.expect_granted(2, &store_fixture.call()).await;
}

/// The lock time-out: a holder that vanished blocks the lock until its expiry at most.
pub async fn seed_lock_time_out_frees_the_lock(store_fixture: &StoreFixture) {
    store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture
        .advance_ms(expiry_ms(TTL_MS) - 2 * SLACK_MS)
        .await;
    let early = store_fixture.acquire(1, &store_fixture.call()).await;
    assert!(matches!(early, Acquired::Held(_)), "{early:?}");
    store_fixture.advance_ms(2 * SLACK_MS).await;
    store_fixture.expect_granted(1, &store_fixture.call()).await;
}

/// EXPIRE during the work: the extended lock outlives its first time-out.
pub async fn seed_lock_extension_moves_the_time_out(store_fixture: &StoreFixture) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture.advance_ms(8_000).await;
    store_fixture.expect_renewed(0, &lease).await;
    store_fixture.advance_ms(8_000).await;
    let reply = store_fixture.acquire(1, &store_fixture.call()).await;
    assert!(matches!(reply, Acquired::Held(_)), "{reply:?}");
}

/// A crash between SETNX and EXPIRE: the next command repairs a key without TTL, and its lock is
/// granted at the holder's expiry.
pub async fn seed_lock_without_ttl_is_healed(store_fixture: &StoreFixture) {
    store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture.remove_ttl().await;
    let reply = store_fixture.acquire(1, &store_fixture.call()).await;
    assert!(matches!(reply, Acquired::Held(_)), "{reply:?}");
    store_fixture.remove_ttl().await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    store_fixture.expect_granted(1, &store_fixture.call()).await;
}

/// GETSET with an expired time stamp: of all callers that see the expiry at once, one acquires the
/// lock.
pub async fn seed_getset_race_for_an_expired_lock_has_one_winner(store_fixture: &StoreFixture) {
    for _ in 0..10 {
        let calls = [(); 4].map(|()| store_fixture.call());
        store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
        let replies = tokio::join!(
            store_fixture.acquire(0, &calls[0]),
            store_fixture.acquire(1, &calls[1]),
            store_fixture.acquire(2, &calls[2]),
            store_fixture.acquire(3, &calls[3]),
        );
        let replies = [replies.0, replies.1, replies.2, replies.3];
        let winners = replies.iter().filter(|r| matches!(r, Acquired::Granted(_)));
        assert_eq!(winners.count(), 1, "{replies:?}");
    }
}

/// The compare-and-delete of a UUID: a release by any other caller has no effect.
pub async fn seed_unlock_only_by_its_holder(store_fixture: &StoreFixture) {
    let call = store_fixture.call();
    let lease = store_fixture.expect_granted(0, &call).await;
    let stranger = crate::store_fixture::lease_of(&store_fixture.call(), lease.fencing_token);
    assert_eq!(
        store_fixture.release(1, &stranger).await,
        Err(LeaseRejection::NotFound)
    );
    let holder = at_most_one(store_fixture.expect_state().await.holders).expect("still held");
    assert_eq!(holder.lease_id, call.lease_id);
    assert_eq!(store_fixture.release(0, &lease).await, released_now(0));
    assert_eq!(
        at_most_one(store_fixture.expect_state().await.holders),
        None
    );
}

/// The watchdog: a lock renewed every third of its ttl is held for as long as the renewals
/// continue.
pub async fn seed_automatic_renewal_holds_the_lock_for_any_time(store_fixture: &StoreFixture) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    for _ in 0..30 {
        store_fixture.advance_ms(TTL_MS / 3).await;
        store_fixture.expect_renewed(0, &lease).await;
    }
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    assert_eq!(
        store_fixture.renew(0, &lease).await,
        Err(LeaseRejection::Expired)
    );
}

/// `isLocking`: an inspection changes nothing.
pub async fn seed_is_locking_is_an_inspection_that_changes_nothing(store_fixture: &StoreFixture) {
    assert_eq!(store_fixture.get().await, None);
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    assert!(at_most_one(store_fixture.expect_state().await.holders).is_some());
    store_fixture.expect_released(0, &lease).await;
    let idle = store_fixture.expect_state().await;
    assert_eq!((at_most_one(idle.holders), idle.queue_length), (None, 0));
    assert_eq!(idle.last_fencing_token, lease.fencing_token.get());
}

/// Pub/sub on unlock: the release makes the grant, and the message only reports it.
pub async fn seed_hand_off_grants_in_the_release_and_then_notifies(store_fixture: &StoreFixture) {
    let lease = store_fixture.acquire_long(0).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(0, &waiter).await;
    store_fixture.expect_released(0, &lease).await;
    let holder = at_most_one(store_fixture.expect_state().await.holders)
        .expect("handed over in the release");
    assert_eq!(holder.lease_id, waiter.lease_id);
    let grant = store_fixture.next_hand_off(0, &waiter).await;
    assert_eq!(grant.fencing_token, holder.fencing_token);
    assert!(grant.fencing_token.get() <= FencingToken::MAX);
}
