//! Terms of a call besides the ttl: the max hold, and the lock delay after an expiry.

use leasehold_server::{
    lock::{AcquireCommand, Mode, PROVISIONAL_GRANT_MS, expiry_ms},
    store::{Acquired, Cancelled, LeaseRejection},
};

use crate::store_fixture::{
    SLACK_MS, StoreFixture, TTL_MS, assert_remaining, at_most_one, lease_of, new_attempt,
    released_now, with_hold_and_delay, with_mode, with_ttl,
};

const DELAY_MS: u64 = 8_000;

fn with_lock_delay(call: AcquireCommand) -> AcquireCommand {
    with_hold_and_delay(call, 0, DELAY_MS)
}

/// Returns the remaining lock delay, from a rejected call that does not wait.
async fn lock_delay_remaining_ms(store_fixture: &StoreFixture) -> u64 {
    let contention = store_fixture.expect_held(0, &store_fixture.call()).await;
    assert_eq!(contention.holders, []);
    contention.closed_ms()
}

async fn granted_ttl_ms(store_fixture: &StoreFixture, call: &AcquireCommand) -> u64 {
    let reply = store_fixture.acquire(0, call).await;
    let Acquired::Granted(grant) = reply else {
        panic!("{reply:?} instead of a grant");
    };
    grant.ttl.as_millis()
}

pub async fn max_hold_cuts_the_first_validity(store_fixture: &StoreFixture) {
    let call = with_hold_and_delay(store_fixture.call(), 4_000, 0);
    assert_eq!(granted_ttl_ms(store_fixture, &call).await, 4_000);
    let holder = at_most_one(store_fixture.expect_state().await.holders).expect("held");
    assert_remaining(holder.remaining_ms, expiry_ms(4_000));
}

pub async fn max_hold_cuts_every_renewal(store_fixture: &StoreFixture) {
    let held = store_fixture
        .expect_granted(0, &with_hold_and_delay(store_fixture.call(), 14_000, 0))
        .await;
    let mut validities = Vec::new();
    for _ in 0..3 {
        store_fixture.advance_ms(3_000).await;
        let reply = store_fixture.renew(0, &held).await;
        let Ok(grant) = reply else {
            panic!("{reply:?} instead of a renewal");
        };
        validities.push(grant.ttl.as_millis());
    }
    assert_eq!(validities[0], TTL_MS);
    assert_remaining(validities[1], 8_000);
    assert_remaining(validities[2], 5_000);
}

pub async fn a_renewal_past_max_hold_is_refused(store_fixture: &StoreFixture) {
    let held = store_fixture
        .expect_granted(0, &with_hold_and_delay(store_fixture.call(), 5_000, 0))
        .await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(0, &waiter).await;
    store_fixture.advance_ms(5_000).await;
    assert_eq!(
        store_fixture.renew(0, &held).await,
        Err(LeaseRejection::MaxHold)
    );
    assert!(
        at_most_one(store_fixture.expect_state().await.holders).is_some(),
        "until its expiry"
    );
    store_fixture.advance_ms(expiry_ms(5_000) - 5_000).await;
    assert_eq!(
        store_fixture.renew(0, &held).await,
        Err(LeaseRejection::Expired)
    );
    let hand_off = at_most_one(store_fixture.touch(0).await.held).expect("its turn");
    assert_eq!(hand_off.request, waiter.request);
}

pub async fn a_lease_past_max_hold_can_be_released(store_fixture: &StoreFixture) {
    let held = store_fixture
        .expect_granted(0, &with_hold_and_delay(store_fixture.call(), 5_000, 0))
        .await;
    store_fixture.advance_ms(5_000).await;
    assert_eq!(store_fixture.release(0, &held).await, released_now(0));
    store_fixture.acquire_long(0).await;
}

pub async fn max_hold_counts_from_the_grant(store_fixture: &StoreFixture) {
    let first = store_fixture.acquire_long(0).await;
    let waiter = with_hold_and_delay(store_fixture.waiting_call(), 6_000, 0);
    store_fixture.expect_queued(0, &waiter).await;
    store_fixture.advance_ms(20_000).await;
    store_fixture.expect_released(0, &first).await;
    let held = store_fixture.claim_next_hand_off(0, &waiter).await;
    store_fixture.expect_renewed(0, &held).await;
    let holder = at_most_one(store_fixture.expect_state().await.holders).expect("held");
    assert_remaining(holder.remaining_ms, expiry_ms(6_000));
}

pub async fn a_repeat_past_max_hold_is_told_that_the_lease_is_over(store_fixture: &StoreFixture) {
    let call = with_hold_and_delay(store_fixture.call(), 5_000, 0);
    store_fixture.expect_granted(0, &call).await;
    store_fixture.advance_ms(5_000).await;
    let reply = store_fixture.acquire(0, &new_attempt(&call)).await;
    assert_eq!(reply, Acquired::Ended);
}

pub async fn a_longer_ttl_does_not_pass_max_hold(store_fixture: &StoreFixture) {
    let call = with_ttl(with_hold_and_delay(store_fixture.call(), 7_000, 0), 60_000);
    assert_eq!(granted_ttl_ms(store_fixture, &call).await, 7_000);
    assert!(granted_ttl_ms(store_fixture, &new_attempt(&call)).await <= 7_000);
}

/// Automatic renewal with a cap: the lock is free after the cap, however often it was renewed.
pub async fn seed_automatic_renewal_ends_at_its_cap(store_fixture: &StoreFixture) {
    let held = store_fixture
        .expect_granted(0, &with_hold_and_delay(store_fixture.call(), 30_000, 0))
        .await;
    let mut renewals = 0;
    while store_fixture.renew(0, &held).await != Err(LeaseRejection::MaxHold) {
        renewals += 1;
        store_fixture.advance_ms(3_000).await;
    }
    assert_eq!(renewals, 10);
    store_fixture.advance_ms(expiry_ms(3_000)).await;
    store_fixture.expect_granted(0, &store_fixture.call()).await;
}

pub async fn lock_delay_closes_a_lock_after_an_expiry(store_fixture: &StoreFixture) {
    store_fixture
        .expect_granted(0, &with_lock_delay(store_fixture.call()))
        .await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    assert_remaining(lock_delay_remaining_ms(store_fixture).await, DELAY_MS);
    assert_remaining(store_fixture.expect_state().await.closed_ms(), DELAY_MS);
    store_fixture.advance_ms(DELAY_MS).await;
    store_fixture.expect_granted(0, &store_fixture.call()).await;
    assert_eq!(store_fixture.expect_state().await.closed_ms(), 0);
}

pub async fn lock_delay_counts_from_the_expiry_not_from_its_detection(
    store_fixture: &StoreFixture,
) {
    store_fixture
        .expect_granted(0, &with_lock_delay(store_fixture.call()))
        .await;
    store_fixture.advance_ms(expiry_ms(TTL_MS) + 5_000).await;
    assert_remaining(
        lock_delay_remaining_ms(store_fixture).await,
        DELAY_MS - 5_000,
    );
    store_fixture.advance_ms(DELAY_MS - 5_000).await;
    store_fixture.expect_granted(0, &store_fixture.call()).await;
}

pub async fn lock_delay_does_not_follow_a_release(store_fixture: &StoreFixture) {
    let held = store_fixture
        .expect_granted(0, &with_lock_delay(store_fixture.call()))
        .await;
    store_fixture.expect_released(0, &held).await;
    store_fixture.expect_granted(0, &store_fixture.call()).await;
}

pub async fn lock_delay_does_not_follow_a_cancelled_call(store_fixture: &StoreFixture) {
    let call = with_lock_delay(store_fixture.call());
    store_fixture.expect_granted(0, &call).await;
    assert_eq!(store_fixture.cancel(0, &call).await, Cancelled::Freed);
    store_fixture.expect_granted(0, &store_fixture.call()).await;
}

pub async fn lock_delay_does_not_follow_an_unclaimed_hand_off(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let silent = with_lock_delay(store_fixture.waiting_call());
    let next = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &silent).await;
    store_fixture.expect_queued(0, &next).await;
    store_fixture.expect_released(0, &held).await;
    store_fixture.next_hand_off(1, &silent).await;
    store_fixture.advance_ms(PROVISIONAL_GRANT_MS).await;
    let hand_off = at_most_one(store_fixture.touch(0).await.held).expect("the next at once");
    assert_eq!(hand_off.request, next.request);
}

pub async fn lock_delay_keeps_waiters_waiting_and_says_how_long(store_fixture: &StoreFixture) {
    store_fixture
        .expect_granted(0, &with_lock_delay(store_fixture.call()))
        .await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(0, &waiter).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    let touched = store_fixture.touch(0).await;
    assert_eq!(touched.held, []);
    let delay_ms = touched.next_event_ms.expect("the end of the lock delay");
    assert_remaining(delay_ms, DELAY_MS);
    store_fixture.advance_ms(delay_ms).await;
    let hand_off = at_most_one(store_fixture.touch(0).await.held).expect("its turn");
    store_fixture
        .expect_renewed(0, &lease_of(&waiter, hand_off.fencing_token))
        .await;
}

pub async fn lock_delay_of_a_reader_closes_the_whole_lock(store_fixture: &StoreFixture) {
    let reader = || with_mode(store_fixture.call(), Mode::Shared);
    store_fixture
        .expect_granted(0, &with_lock_delay(reader()))
        .await;
    let live = store_fixture
        .expect_granted(0, &with_ttl(reader(), 60_000))
        .await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    let contention = store_fixture.expect_held(0, &reader()).await;
    assert_remaining(contention.closed_ms(), DELAY_MS);
    store_fixture.expect_renewed(0, &live).await;
    store_fixture.advance_ms(DELAY_MS).await;
    store_fixture.expect_granted(0, &reader()).await;
}

pub async fn the_longest_lock_delay_counts(store_fixture: &StoreFixture) {
    let reader = || with_mode(store_fixture.call(), Mode::Shared);
    store_fixture
        .expect_granted(0, &with_hold_and_delay(reader(), 0, 2_000))
        .await;
    store_fixture
        .expect_granted(0, &with_hold_and_delay(reader(), 0, 9_000))
        .await;
    store_fixture
        .expect_granted(0, &with_hold_and_delay(reader(), 0, 4_000))
        .await;
    store_fixture.advance_ms(expiry_ms(TTL_MS) + SLACK_MS).await;
    let left_ms = lock_delay_remaining_ms(store_fixture).await;
    assert!(
        (9_000 - 2 * SLACK_MS..9_000).contains(&left_ms),
        "{left_ms}"
    );
}
