//! Shared and exclusive holders of one lock: readers together, writers alone, in queue order.

use leasehold_server::{
    lock::{AcquireCommand, FencingToken, Mode, PROVISIONAL_GRANT_MS, expiry_ms},
    store::{Cancelled, Checked, LeaseRejection},
};

use crate::store_fixture::{
    SLACK_MS, StoreFixture, TTL_MAX_MS, TTL_MS, assert_remaining, at_most_one, lease_of,
    new_attempt, with_mode, with_ttl,
};

fn reader(store_fixture: &StoreFixture) -> AcquireCommand {
    with_mode(store_fixture.call(), Mode::Shared)
}

fn waiting_reader(store_fixture: &StoreFixture) -> AcquireCommand {
    with_mode(store_fixture.waiting_call(), Mode::Shared)
}

pub async fn readers_hold_together(store_fixture: &StoreFixture) {
    let (one, other) = (reader(store_fixture), reader(store_fixture));
    let first = store_fixture.expect_granted(0, &one).await;
    let second = store_fixture.expect_granted(1, &other).await;
    assert!(first.fencing_token < second.fencing_token);
    store_fixture.expect_renewed(0, &first).await;
    store_fixture.expect_renewed(1, &second).await;
    let state = store_fixture.expect_state().await;
    assert_eq!(state.holder_count, 2);
    assert!(state.holders.iter().all(|held| held.mode == Mode::Shared));
}

pub async fn a_writer_waits_for_the_last_reader(store_fixture: &StoreFixture) {
    let first = store_fixture
        .expect_granted(0, &reader(store_fixture))
        .await;
    let second = store_fixture
        .expect_granted(0, &reader(store_fixture))
        .await;
    let writer = store_fixture.waiting_call();
    store_fixture.expect_queued(0, &writer).await;
    store_fixture.expect_released(0, &first).await;
    assert_eq!(store_fixture.expect_state().await.queue_length, 1);
    store_fixture.expect_released(0, &second).await;
    store_fixture.next_hand_off(0, &writer).await;
    let holder = at_most_one(store_fixture.expect_state().await.holders).expect("the writer");
    assert_eq!(
        (holder.lease_id, holder.mode),
        (writer.lease_id, Mode::Exclusive)
    );
}

pub async fn a_reader_waits_for_the_writer(store_fixture: &StoreFixture) {
    let writer = store_fixture.acquire_long(0).await;
    store_fixture.expect_held(0, &reader(store_fixture)).await;
    let reader = waiting_reader(store_fixture);
    store_fixture.expect_queued(0, &reader).await;
    store_fixture.expect_released(0, &writer).await;
    store_fixture.claim_next_hand_off(0, &reader).await;
}

pub async fn t16_a_queued_writer_stops_later_readers(store_fixture: &StoreFixture) {
    let first = store_fixture
        .expect_granted(0, &reader(store_fixture))
        .await;
    let writer = store_fixture.waiting_call();
    store_fixture.expect_queued(0, &writer).await;
    store_fixture.expect_held(0, &reader(store_fixture)).await;
    let late = waiting_reader(store_fixture);
    store_fixture.expect_queued(0, &late).await;
    store_fixture.expect_released(0, &first).await;
    let writer = store_fixture.claim_next_hand_off(0, &writer).await;
    assert_eq!(store_fixture.expect_state().await.queue_length, 1);
    store_fixture.expect_released(0, &writer).await;
    store_fixture.claim_next_hand_off(0, &late).await;
}

pub async fn consecutive_readers_at_the_head_enter_together(store_fixture: &StoreFixture) {
    let writer = store_fixture.acquire_long(0).await;
    let (one, other) = (waiting_reader(store_fixture), waiting_reader(store_fixture));
    let next = store_fixture.waiting_call();
    let behind = waiting_reader(store_fixture);
    for call in [&one, &other, &next, &behind] {
        store_fixture.expect_queued(0, call).await;
    }
    store_fixture.expect_released(0, &writer).await;
    let one = store_fixture.claim_next_hand_off(0, &one).await;
    let other = store_fixture.claim_next_hand_off(0, &other).await;
    let state = store_fixture.expect_state().await;
    assert_eq!((state.holder_count, state.queue_length), (2, 2));
    store_fixture.expect_released(0, &one).await;
    store_fixture.expect_released(0, &other).await;
    store_fixture.claim_next_hand_off(0, &next).await;
    assert_eq!(store_fixture.expect_state().await.queue_length, 1);
}

pub async fn readers_of_several_brokers_enter_together(store_fixture: &StoreFixture) {
    let writer = store_fixture.acquire_long(0).await;
    let calls = [(); 4].map(|()| waiting_reader(store_fixture));
    for (index, call) in calls.iter().enumerate() {
        store_fixture.expect_queued(1 + index % 2, call).await;
    }
    store_fixture.expect_released(0, &writer).await;
    for (index, call) in calls.iter().enumerate() {
        let grants = store_fixture.next_hand_off(1 + index % 2, call).await;
        assert!(grants.is_provisional);
        store_fixture
            .expect_renewed(3, &lease_of(call, grants.fencing_token))
            .await;
    }
    let state = store_fixture.expect_state().await;
    assert_eq!((state.holder_count, state.queue_length), (4, 0));
}

pub async fn a_reader_joins_readers_that_have_not_claimed_yet(store_fixture: &StoreFixture) {
    let writer = store_fixture.acquire_long(0).await;
    let grants = waiting_reader(store_fixture);
    store_fixture.expect_queued(1, &grants).await;
    store_fixture.expect_released(0, &writer).await;
    store_fixture
        .expect_granted(0, &reader(store_fixture))
        .await;
    store_fixture.claim_next_hand_off(1, &grants).await;
    assert_eq!(store_fixture.expect_state().await.holder_count, 2);
}

pub async fn a_reader_that_lapses_gives_its_weight_back(store_fixture: &StoreFixture) {
    let first = store_fixture.acquire_long(0).await;
    let silent = waiting_reader(store_fixture);
    let writer = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &silent).await;
    store_fixture.expect_queued(2, &writer).await;
    store_fixture.expect_released(0, &first).await;
    let burnt = store_fixture.next_hand_off(1, &silent).await;
    store_fixture.advance_ms(PROVISIONAL_GRANT_MS).await;
    let grants = at_most_one(store_fixture.touch(2).await.held).expect("the writer is next");
    assert_eq!(grants.request, writer.request);
    let burnt = lease_of(&silent, burnt.fencing_token);
    assert_eq!(
        store_fixture.renew(1, &burnt).await,
        Err(LeaseRejection::NotFound)
    );
    assert_eq!(store_fixture.expect_state().await.queue_length, 1);
    store_fixture
        .expect_released(2, &lease_of(&writer, grants.fencing_token))
        .await;
    store_fixture.expect_granted(1, &new_attempt(&silent)).await;
}

pub async fn t15_each_reader_expires_by_itself(store_fixture: &StoreFixture) {
    let dead = store_fixture
        .expect_granted(0, &reader(store_fixture))
        .await;
    let live = store_fixture
        .expect_granted(0, &reader(store_fixture))
        .await;
    let writer = store_fixture.waiting_call();
    store_fixture.expect_queued(0, &writer).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS) - SLACK_MS).await;
    store_fixture.expect_renewed(0, &live).await;
    store_fixture.advance_ms(SLACK_MS).await;
    assert_eq!(
        store_fixture.renew(0, &dead).await,
        Err(LeaseRejection::Expired)
    );
    let state = store_fixture.expect_state().await;
    assert_eq!((state.holder_count, state.queue_length), (1, 1));
    store_fixture.expect_released(0, &live).await;
    store_fixture.claim_next_hand_off(0, &writer).await;
}

pub async fn a_waiter_is_told_when_the_first_reader_may_expire(store_fixture: &StoreFixture) {
    store_fixture
        .expect_granted(0, &with_ttl(reader(store_fixture), 60_000))
        .await;
    store_fixture
        .expect_granted(0, &reader(store_fixture))
        .await;
    let next_event_ms = store_fixture
        .expect_queued(0, &store_fixture.waiting_call())
        .await;
    assert_remaining(next_event_ms.expect("a time"), expiry_ms(TTL_MS));
}

pub async fn t17_a_writer_that_gives_up_stops_no_reader(store_fixture: &StoreFixture) {
    store_fixture
        .expect_granted(0, &reader(store_fixture))
        .await;
    let writer = store_fixture.waiting_call();
    let behind = waiting_reader(store_fixture);
    store_fixture.expect_queued(0, &writer).await;
    store_fixture.expect_queued(0, &behind).await;
    assert_eq!(store_fixture.cancel(0, &writer).await, Cancelled::Dequeued);
    store_fixture.claim_next_hand_off(0, &behind).await;
    store_fixture
        .expect_granted(0, &reader(store_fixture))
        .await;
    assert_eq!(store_fixture.expect_state().await.holder_count, 3);
}

pub async fn t17_a_writer_whose_broker_is_silent_stops_no_reader(store_fixture: &StoreFixture) {
    let held = store_fixture
        .expect_granted(0, &with_ttl(reader(store_fixture), 60_000))
        .await;
    store_fixture
        .expect_queued(1, &store_fixture.waiting_call())
        .await;
    let behind = waiting_reader(store_fixture);
    store_fixture.expect_queued(0, &behind).await;
    store_fixture.advance_with_touches(7_500, &[0]).await;
    let grants = store_fixture.touch(0).await.held;
    assert!(grants.iter().any(|grants| grants.request == behind.request));
    store_fixture.expect_renewed(0, &held).await;
}

pub async fn a_reader_releases_its_own_hold_only(store_fixture: &StoreFixture) {
    let first = store_fixture
        .expect_granted(0, &reader(store_fixture))
        .await;
    let second = store_fixture
        .expect_granted(0, &reader(store_fixture))
        .await;
    let third = store_fixture
        .expect_granted(0, &reader(store_fixture))
        .await;
    store_fixture.expect_released(0, &second).await;
    assert_eq!(
        store_fixture.renew(0, &second).await,
        Err(LeaseRejection::Released)
    );
    store_fixture.expect_renewed(0, &first).await;
    store_fixture.expect_renewed(0, &third).await;
    assert_eq!(store_fixture.expect_state().await.holder_count, 2);
}

pub async fn a_repeat_of_a_reader_finds_its_own_lease(store_fixture: &StoreFixture) {
    let calls = [(); 3].map(|()| reader(store_fixture));
    let mut leases = Vec::new();
    for call in &calls {
        leases.push(store_fixture.expect_granted(0, call).await);
    }
    for (call, lease) in calls.iter().zip(&leases) {
        assert_eq!(
            &store_fixture.expect_granted(1, &new_attempt(call)).await,
            lease
        );
    }
    assert_eq!(store_fixture.expect_state().await.holder_count, 3);
}

pub async fn hundreds_of_readers_enter_in_one_release(store_fixture: &StoreFixture) {
    const READERS: usize = 200;
    let writer = store_fixture.acquire_long(0).await;
    let mut calls = Vec::new();
    for index in 0..READERS {
        let call = waiting_reader(store_fixture);
        store_fixture.expect_queued(index % 2, &call).await;
        calls.push(call);
    }
    store_fixture.expect_released(0, &writer).await;
    let mut tokens = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        tokens.push(
            store_fixture
                .claim_next_hand_off(index % 2, call)
                .await
                .fencing_token,
        );
    }
    assert!(tokens.is_sorted(), "in the order of the line");
    let state = store_fixture.expect_state().await;
    assert_eq!((state.holder_count, state.queue_length), (200, 0));
}

pub async fn a_thousand_hold_and_the_next_waits(store_fixture: &StoreFixture) {
    let mut leases = Vec::new();
    for _ in 0..1_000 {
        let call = with_ttl(reader(store_fixture), 60_000);
        leases.push(store_fixture.expect_granted(0, &call).await);
    }
    let contention = store_fixture.expect_held(0, &reader(store_fixture)).await;
    assert_eq!(contention.holders.len(), 5);
    let waits = waiting_reader(store_fixture);
    store_fixture.expect_queued(0, &waits).await;
    let state = store_fixture.expect_state().await;
    assert_eq!((state.holders.len(), state.holder_count), (100, 1_000));
    store_fixture.expect_released(0, &leases[499]).await;
    store_fixture.claim_next_hand_off(0, &waits).await;
    assert_eq!(store_fixture.expect_state().await.holder_count, 1_000);
}

pub async fn each_of_hundreds_of_tokens_is_live_until_its_release(store_fixture: &StoreFixture) {
    let mut leases = Vec::new();
    for _ in 0..300 {
        let call = with_ttl(reader(store_fixture), TTL_MAX_MS);
        leases.push(store_fixture.expect_granted(0, &call).await);
    }
    store_fixture.expect_released(0, &leases[150]).await;
    for (index, lease) in leases.iter().enumerate() {
        let checked = store_fixture
            .store(1)
            .check(&store_fixture.lock, lease.fencing_token);
        let live = matches!(checked.await, Ok(Checked::Live { .. }));
        assert_eq!(live, index != 150, "{index}");
    }
}

pub async fn a_token_that_was_never_given_is_stale_or_unknown(store_fixture: &StoreFixture) {
    let token = FencingToken::new(7).expect("a token");
    let unknown = store_fixture
        .store(0)
        .check(&store_fixture.lock, token)
        .await;
    assert_eq!(unknown, Ok(Checked::Unknown));
    let newest = store_fixture.acquire_long(0).await.fencing_token.get();
    let stale = store_fixture
        .store(0)
        .check(&store_fixture.lock, token)
        .await;
    assert_eq!(stale, Ok(Checked::Stale { newest }));
}

pub async fn readers_that_expire_together_are_all_remembered(store_fixture: &StoreFixture) {
    let mut leases = Vec::new();
    for _ in 0..50 {
        leases.push(
            store_fixture
                .expect_granted(0, &reader(store_fixture))
                .await,
        );
    }
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    store_fixture.expect_granted(0, &store_fixture.call()).await;
    for lease in &leases {
        assert_eq!(
            store_fixture.renew(0, lease).await,
            Err(LeaseRejection::Expired)
        );
    }
}

pub async fn waiters_are_shown_with_their_modes(store_fixture: &StoreFixture) {
    store_fixture.acquire_long(0).await;
    store_fixture
        .expect_queued(0, &waiting_reader(store_fixture))
        .await;
    store_fixture
        .expect_queued(0, &store_fixture.waiting_call())
        .await;
    let waiters = store_fixture.expect_state().await.waiters.into_iter();
    let modes: Vec<_> = waiters.map(|waits| waits.mode).collect();
    assert_eq!(modes, [Mode::Shared, Mode::Exclusive]);
}

/// The read/write table of the seeds: readers admit other readers.
pub async fn seed_read_locks_admit_readers_and_keep_writers_out(store_fixture: &StoreFixture) {
    let first = store_fixture
        .expect_granted(0, &reader(store_fixture))
        .await;
    let second = store_fixture
        .expect_granted(1, &reader(store_fixture))
        .await;
    store_fixture.expect_held(0, &store_fixture.call()).await;
    store_fixture.expect_released(0, &first).await;
    store_fixture.expect_held(0, &store_fixture.call()).await;
    store_fixture.expect_released(1, &second).await;
    store_fixture.expect_granted(0, &store_fixture.call()).await;
}

/// The read/write table of the seeds: a writer excludes readers and writers.
pub async fn seed_a_write_lock_keeps_readers_and_writers_out(store_fixture: &StoreFixture) {
    let writer = store_fixture.expect_granted(0, &store_fixture.call()).await;
    for call in [reader(store_fixture), store_fixture.call()] {
        store_fixture.expect_held(1, &call).await;
    }
    store_fixture.expect_released(0, &writer).await;
    store_fixture
        .expect_granted(1, &reader(store_fixture))
        .await;
}
