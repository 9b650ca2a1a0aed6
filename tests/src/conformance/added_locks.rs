//! Locks that are added to an existing lease: a grant like any other, under the lease's id.

use leasehold_server::{
    lock::{
        AcquireCommand, Attachment, FencingToken, Grant, LeaseRef, Mode, RELEASED_MAX, StreamId,
        TOMBSTONE_MS, expiry_ms,
    },
    store::{Acquired, Cancelled, LeaseRejection, LeaseReply},
};

use crate::store_fixture::{
    SLACK_MS, StoreFixture, TTL_MS, add_to_lease, at_most_one, lease_of, lock_key, new_attempt,
    released_before, released_now, with_mode, with_ttl,
};

/// A lease on another lock.
async fn lease_on_another_lock(store_fixture: &StoreFixture) -> LeaseRef {
    let mut call = with_ttl(store_fixture.call(), 60_000);
    call.lock = lock_key("default", "another lock");
    store_fixture.expect_granted(0, &call).await
}

/// Two adds of one lease, queued for one lock. The lock has just been released, and its first
/// waiter has the hand-off.
async fn two_queued_adds(store_fixture: &StoreFixture) -> [AcquireCommand; 2] {
    let other = lease_on_another_lock(store_fixture).await;
    let held = store_fixture.acquire_long(0).await;
    let calls = [(); 2].map(|()| add_to_lease(&other, store_fixture.waiting_call()));
    store_fixture.expect_queued(1, &calls[0]).await;
    store_fixture.expect_queued(2, &calls[1]).await;
    store_fixture.expect_released(0, &held).await;
    calls
}

/// Attaches a lease to a stream of the first broker.
async fn attach(store_fixture: &StoreFixture, lease: &LeaseRef) -> LeaseReply<Grant> {
    let store = store_fixture.store(0);
    let stream = StreamId {
        broker: store.broker(),
        epoch: 1,
    };
    let attached = store.attach(lease, Attachment { stream, number: 1 });
    attached.await.expect("attach")
}

fn add_call(store_fixture: &StoreFixture, to: &LeaseRef) -> AcquireCommand {
    add_to_lease(to, store_fixture.call())
}

pub async fn an_added_lock_is_held_under_the_same_lease(store_fixture: &StoreFixture) {
    let other = lease_on_another_lock(store_fixture).await;
    let call = add_call(store_fixture, &other);
    let added = store_fixture.expect_granted(0, &call).await;
    assert_eq!(added.lease_id, other.lease_id);
    store_fixture.expect_renewed(0, &added).await;
    store_fixture.expect_renewed(0, &other).await;
    store_fixture.expect_released(0, &other).await;
    store_fixture.expect_renewed(0, &added).await;
    let holder = at_most_one(store_fixture.expect_state().await.holders).expect("held");
    assert_eq!(holder.lease_id, other.lease_id);
}

pub async fn an_added_lock_is_waited_for_in_the_queue(store_fixture: &StoreFixture) {
    let other = lease_on_another_lock(store_fixture).await;
    let held = store_fixture.acquire_long(0).await;
    store_fixture
        .expect_held(0, &add_call(store_fixture, &other))
        .await;
    let call = add_to_lease(&other, store_fixture.waiting_call());
    store_fixture.expect_queued(1, &call).await;
    store_fixture.expect_released(0, &held).await;
    let added = store_fixture.claim_next_hand_off(1, &call).await;
    assert_eq!(added.lease_id, other.lease_id);
}

pub async fn a_repeat_of_an_added_lock_gets_the_same_grant(store_fixture: &StoreFixture) {
    let other = lease_on_another_lock(store_fixture).await;
    let call = add_call(store_fixture, &other);
    let added = store_fixture.expect_granted(0, &call).await;
    assert_eq!(
        store_fixture.expect_granted(1, &new_attempt(&call)).await,
        added
    );
}

/// Covers a copy of the lease that does not name the lock yet.
pub async fn adding_a_lock_that_the_lease_holds_enters_it(store_fixture: &StoreFixture) {
    let held = store_fixture.expect_granted(0, &store_fixture.call()).await;
    let entry = add_call(store_fixture, &held);
    assert_eq!(store_fixture.expect_reentered(0, &entry).await, 2);
    let holder = at_most_one(store_fixture.expect_state().await.holders).expect("one holder");
    assert_eq!(holder.fencing_token, held.fencing_token);
}

pub async fn a_released_lock_is_added_again(store_fixture: &StoreFixture) {
    let other = lease_on_another_lock(store_fixture).await;
    let call = add_call(store_fixture, &other);
    let first = store_fixture.expect_granted(0, &call).await;
    store_fixture.expect_released(0, &first).await;
    assert_eq!(
        store_fixture.acquire(0, &new_attempt(&call)).await,
        Acquired::Ended
    );
    let second = store_fixture
        .expect_granted(0, &add_call(store_fixture, &other))
        .await;
    assert!(second.fencing_token > first.fencing_token);
    store_fixture.expect_renewed(0, &second).await;
}

/// The holder may present the lease as it received it, while another call of it adds the lock again.
pub async fn a_lock_that_was_added_again_is_reported_as_released_to_its_older_token(
    store_fixture: &StoreFixture,
) {
    let other = lease_on_another_lock(store_fixture).await;
    let first = store_fixture
        .expect_granted(0, &add_call(store_fixture, &other))
        .await;
    store_fixture
        .release_lock(0, &first)
        .await
        .expect("released");
    let second = store_fixture
        .expect_granted(0, &add_call(store_fixture, &other))
        .await;
    assert_eq!(
        store_fixture.renew(0, &first).await,
        Err(LeaseRejection::Released)
    );
    assert_eq!(
        attach(store_fixture, &first).await,
        Err(LeaseRejection::Released)
    );
    let already = released_before(0);
    assert_eq!(store_fixture.release_lock(0, &first).await, already);
    store_fixture.expect_renewed(0, &second).await;
    let unknown = LeaseRef {
        fencing_token: FencingToken::after(second.fencing_token.get(), 0),
        ..second
    };
    assert_eq!(
        store_fixture.renew(0, &unknown).await,
        Err(LeaseRejection::NotFound)
    );
    assert_eq!(
        attach(store_fixture, &unknown).await,
        Err(LeaseRejection::NotFound)
    );
    assert_eq!(
        store_fixture.release_lock(0, &unknown).await,
        Err(LeaseRejection::NotFound)
    );
}

/// The release is remembered even after more than `RELEASED_MAX` later releases, because the holder
/// may present the lease as it received it.
pub async fn the_release_of_an_added_lock_is_remembered_until_it_would_have_expired(
    store_fixture: &StoreFixture,
) {
    let other = lease_on_another_lock(store_fixture).await;
    let added = with_ttl(add_call(store_fixture, &other), 20_000);
    let added = store_fixture.expect_granted(0, &added).await;
    let now = released_now(0);
    assert_eq!(store_fixture.release_lock(0, &added).await, now);
    for _ in 0..=RELEASED_MAX {
        let lease = store_fixture.acquire_long(1).await;
        store_fixture.expect_released(1, &lease).await;
    }
    // On a busy machine the calls above take real time.
    store_fixture
        .advance_ms(expiry_ms(20_000) - 5 * SLACK_MS)
        .await;
    assert_eq!(
        store_fixture.renew(2, &added).await,
        Err(LeaseRejection::Released)
    );
    let already = released_before(0);
    assert_eq!(store_fixture.release_lock(2, &added).await, already);
    store_fixture.advance_ms(5 * SLACK_MS).await;
    assert_eq!(
        store_fixture.renew(2, &added).await,
        Err(LeaseRejection::NotFound)
    );
}

/// The loss of the second grant must not be reported as the earlier release.
pub async fn a_lock_that_expires_after_it_was_added_again_is_reported_as_expired(
    store_fixture: &StoreFixture,
) {
    let other = lease_on_another_lock(store_fixture).await;
    let first = store_fixture
        .expect_granted(0, &add_call(store_fixture, &other))
        .await;
    store_fixture
        .release_lock(0, &first)
        .await
        .expect("released");
    let second = store_fixture
        .expect_granted(0, &add_call(store_fixture, &other))
        .await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    assert_eq!(
        store_fixture.renew(0, &second).await,
        Err(LeaseRejection::Expired)
    );
}

pub async fn t21_a_late_copy_of_an_add_whose_lock_was_released_is_refused(
    store_fixture: &StoreFixture,
) {
    let other = lease_on_another_lock(store_fixture).await;
    let call = add_call(store_fixture, &other);
    let first = store_fixture.expect_granted(0, &call).await;
    store_fixture.expect_released(0, &first).await;
    for _ in 0..20 {
        let next = store_fixture.expect_granted(0, &store_fixture.call()).await;
        store_fixture.expect_released(0, &next).await;
    }
    assert_eq!(
        store_fixture.acquire(1, &new_attempt(&call)).await,
        Acquired::Ended
    );
    store_fixture.advance_ms(TOMBSTONE_MS).await;
    store_fixture.expect_granted(1, &new_attempt(&call)).await;
}

pub async fn a_lock_that_expired_is_not_added_again(store_fixture: &StoreFixture) {
    let other = lease_on_another_lock(store_fixture).await;
    let added = store_fixture
        .expect_granted(0, &add_call(store_fixture, &other))
        .await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    let reply = store_fixture
        .acquire(0, &add_call(store_fixture, &other))
        .await;
    assert_eq!(reply, Acquired::Ended);
    assert_eq!(
        store_fixture.renew(0, &added).await,
        Err(LeaseRejection::Expired)
    );
}

pub async fn two_adds_of_one_lease_make_one_holder(store_fixture: &StoreFixture) {
    let [first, second] = two_queued_adds(store_fixture).await;
    let added = store_fixture.claim_next_hand_off(1, &first).await;
    let state = store_fixture.expect_state().await;
    assert_eq!((state.holder_count, state.queue_length), (1, 1));
    store_fixture.expect_released(1, &added).await;
    let again = store_fixture.claim_next_hand_off(2, &second).await;
    assert!(again.fencing_token > added.fencing_token);
}

/// The repeat of the queued add is answered like a new add.
pub async fn a_queued_add_enters_the_lock_if_another_add_of_its_lease_was_granted(
    store_fixture: &StoreFixture,
) {
    let [first, second] = two_queued_adds(store_fixture).await;
    let added = store_fixture.claim_next_hand_off(1, &first).await;
    assert_eq!(
        store_fixture
            .expect_reentered(3, &new_attempt(&second))
            .await,
        2
    );
    let state = store_fixture.expect_state().await;
    assert_eq!((state.holder_count, state.queue_length), (1, 0));
    assert_eq!(store_fixture.cancel(2, &second).await, Cancelled::Kept);
    store_fixture.expect_released(1, &added).await;
    store_fixture.expect_granted(0, &store_fixture.call()).await;
}

pub async fn a_queued_exclusive_add_of_a_lease_that_holds_a_shared_lock_is_denied(
    store_fixture: &StoreFixture,
) {
    let other = lease_on_another_lock(store_fixture).await;
    let held = store_fixture.acquire_long(0).await;
    let reader = with_mode(
        add_to_lease(&other, store_fixture.waiting_call()),
        Mode::Shared,
    );
    let writer = add_to_lease(&other, store_fixture.waiting_call());
    store_fixture.expect_queued(1, &reader).await;
    store_fixture.expect_queued(1, &writer).await;
    store_fixture.expect_released(0, &held).await;
    store_fixture.claim_next_hand_off(1, &reader).await;
    let denied = store_fixture.acquire(1, &new_attempt(&writer)).await;
    assert_eq!(denied, Acquired::UpgradeDenied);
    assert_eq!(store_fixture.expect_state().await.queue_length, 0);
}

/// Waiters behind the add and later callers are not delayed. The broker of the add is notified to
/// rejoin.
pub async fn a_queued_add_of_a_lease_that_holds_the_lock_blocks_no_other_waiter(
    store_fixture: &StoreFixture,
) {
    let shared = |call| with_mode(call, Mode::Shared);
    let other = lease_on_another_lock(store_fixture).await;
    let held = store_fixture.acquire_long(0).await;
    let calls = [(); 2].map(|()| shared(add_to_lease(&other, store_fixture.waiting_call())));
    let behind = shared(store_fixture.waiting_call());
    store_fixture.expect_queued(1, &calls[0]).await;
    store_fixture.expect_queued(2, &calls[1]).await;
    store_fixture.expect_queued(3, &behind).await;
    store_fixture.expect_released(0, &held).await;
    store_fixture.claim_next_hand_off(1, &calls[0]).await;
    store_fixture.claim_next_hand_off(3, &behind).await;
    store_fixture
        .expect_granted(0, &shared(store_fixture.call()))
        .await;
    assert_eq!(store_fixture.expect_state().await.queue_length, 1);
    assert!(!store_fixture.touch(1).await.rejoin);
    assert!(store_fixture.touch(2).await.rejoin);
    // This waiter keeps the queue in existence, and with it the queue's list of known brokers.
    store_fixture
        .expect_queued(2, &store_fixture.waiting_call())
        .await;
    assert_eq!(
        store_fixture
            .expect_reentered(2, &new_attempt(&calls[1]))
            .await,
        2
    );
    assert!(!store_fixture.touch(2).await.rejoin);
}

pub async fn an_add_waits_for_a_promise_to_its_own_lease(store_fixture: &StoreFixture) {
    let other = lease_on_another_lock(store_fixture).await;
    let held = store_fixture.acquire_long(0).await;
    let first = add_to_lease(&other, store_fixture.waiting_call());
    store_fixture.expect_queued(1, &first).await;
    store_fixture.expect_released(0, &held).await;
    let hand_off = store_fixture.next_hand_off(1, &first).await;
    assert!(hand_off.is_provisional);
    let second = add_to_lease(&other, store_fixture.waiting_call());
    store_fixture.expect_queued(0, &second).await;
    store_fixture
        .expect_renewed(1, &lease_of(&first, hand_off.fencing_token))
        .await;
    assert_eq!(store_fixture.expect_state().await.holder_count, 1);
}

pub async fn cancelling_an_add_leaves_the_lease_its_other_locks(store_fixture: &StoreFixture) {
    let other = lease_on_another_lock(store_fixture).await;
    let call = add_call(store_fixture, &other);
    store_fixture.expect_granted(0, &call).await;
    assert_eq!(store_fixture.cancel(0, &call).await, Cancelled::Freed);
    store_fixture.expect_renewed(0, &other).await;
    store_fixture.expect_granted(1, &store_fixture.call()).await;
}
