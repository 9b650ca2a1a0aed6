//! The limit of spans: no grant and no renewal may block its lock for longer, with its expiry and its
//! lock_delay, than the era of the store allows.

use leasehold_server::{
    lock::{AcquireCommand, Grant, PROVISIONAL_GRANT_MS, SPAN_MIN_MS, Ttl},
    store::{Acquired, Renewal, StoreError},
};

use crate::store_fixture::{
    SLACK_MS, StoreFixture, TTL_MAX_MS, assert_remaining, at_most_one, lease_of, new_attempt,
    recovering_ms, with_hold_and_delay, with_ttl,
};

/// Span of the longest ttl.
const LONG_SPAN_MS: u64 = 72_250;
/// Lock_delay beside which the least limit leaves no second of validity.
const LONG_DELAY_MS: u64 = 11_000;
/// Time until a limit changes, longer than a behaviour takes before.
const CHANGE_MS: u64 = 30_000;

fn with_long_delay(call: AcquireCommand) -> AcquireCommand {
    with_hold_and_delay(call, 0, LONG_DELAY_MS)
}

async fn grant(store_fixture: &StoreFixture, call: &AcquireCommand) -> Grant {
    let reply = store_fixture.acquire(0, call).await;
    let Acquired::Granted(grant) = reply else {
        panic!("{reply:?} instead of a grant");
    };
    grant
}

pub async fn a_validity_is_cut_until_the_limit_is_raised(store_fixture: &StoreFixture) {
    store_fixture
        .limit_spans(20_000, LONG_SPAN_MS, CHANGE_MS)
        .await;
    let call = with_ttl(store_fixture.call(), TTL_MAX_MS);
    let granted = grant(store_fixture, &call).await;
    assert_eq!(granted.ttl, Ttl::from_stored(16_459));
    assert_eq!(granted.span_ms, LONG_SPAN_MS);
    let holder = at_most_one(store_fixture.expect_state().await.holders).expect("held");
    assert_remaining(holder.remaining_ms, 20_000);
    let lease = lease_of(&call, granted.fencing_token);
    store_fixture.advance_ms(15_000).await;
    let renewed = store_fixture.renew(0, &lease).await;
    assert_eq!(renewed.map(|grant| grant.ttl), Ok(granted.ttl));
    store_fixture.advance_ms(CHANGE_MS - 15_000).await;
    let renewed = store_fixture.renew(0, &lease).await;
    assert_eq!(renewed.map(|grant| grant.ttl), Ok(call.ttl));
}

pub async fn a_lowered_limit_shortens_no_expiry(store_fixture: &StoreFixture) {
    let call = with_ttl(store_fixture.call(), TTL_MAX_MS);
    let lease = store_fixture.expect_granted(0, &call).await;
    store_fixture.limit_spans(LONG_SPAN_MS, 0, CHANGE_MS).await;
    let renewed = store_fixture.renew(0, &lease).await;
    assert_eq!(
        renewed.map(|grant| (grant.ttl, grant.span_ms)),
        Ok((Ttl::from_stored(10_000), LONG_SPAN_MS))
    );
    let holder = at_most_one(store_fixture.expect_state().await.holders).expect("held");
    assert_remaining(holder.remaining_ms, LONG_SPAN_MS);
}

pub async fn a_call_whose_lock_delay_is_too_long_is_rejected_until_the_limit_is_raised(
    store_fixture: &StoreFixture,
) {
    store_fixture
        .limit_spans(0, SPAN_MIN_MS + 1_000, CHANGE_MS)
        .await;
    let call = with_long_delay(store_fixture.call());
    for call in [&call, &with_long_delay(store_fixture.waiting_call())] {
        let left_ms = recovering_ms(store_fixture.store(0).acquire(call).await);
        assert_remaining(left_ms, CHANGE_MS);
    }
    assert_eq!(store_fixture.get().await, None);
    store_fixture.advance_ms(CHANGE_MS).await;
    let granted = grant(store_fixture, &new_attempt(&call)).await;
    assert_eq!(granted.ttl, Ttl::from_stored(1_667));
}

pub async fn a_lease_over_the_limit_is_not_renewed_and_is_held_until_its_expiry(
    store_fixture: &StoreFixture,
) {
    let call = with_long_delay(store_fixture.call());
    let lease = store_fixture.expect_granted(0, &call).await;
    store_fixture.limit_spans(0, 0, 0).await;
    let renewed = store_fixture
        .store(0)
        .renew(&lease, Renewal::default())
        .await;
    assert_eq!(
        renewed,
        Err(StoreError::Recovering {
            retry_after_ms: 1_000,
            recovery: None,
        })
    );
    recovering_ms(store_fixture.store(1).acquire(&new_attempt(&call)).await);
    let holder = at_most_one(store_fixture.expect_state().await.holders).expect("held");
    assert_remaining(holder.remaining_ms, SPAN_MIN_MS);
    store_fixture.expect_released(0, &lease).await;
}

pub async fn a_waiter_over_the_limit_is_passed_over_and_rejected_when_it_repeats(
    store_fixture: &StoreFixture,
) {
    let held = store_fixture.acquire_long(0).await;
    let waiter = with_long_delay(store_fixture.waiting_call());
    store_fixture.expect_queued(0, &waiter).await;
    let next = store_fixture.waiting_call();
    store_fixture.expect_queued(0, &next).await;
    store_fixture.limit_spans(0, 0, 0).await;
    store_fixture.expect_released(0, &held).await;
    let hand_off = store_fixture.next_hand_off(0, &next).await;
    let next = lease_of(&next, hand_off.fencing_token);
    store_fixture.expect_released(0, &next).await;
    let touched = store_fixture.touch(0).await;
    assert!(touched.rejoin && touched.held.is_empty(), "{touched:?}");
    recovering_ms(store_fixture.store(0).acquire(&waiter).await);
    assert_eq!(store_fixture.expect_state().await.queue_length, 1);
    store_fixture.limit_spans(0, LONG_SPAN_MS, 0).await;
    let touched = store_fixture.touch(0).await;
    let hand_off = at_most_one(touched.held).expect("handed off");
    assert_eq!(hand_off.request, waiter.request);
}

pub async fn a_hand_off_over_the_limit_is_not_claimed(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let waiter = with_long_delay(store_fixture.waiting_call());
    store_fixture.expect_queued(1, &waiter).await;
    store_fixture.expect_released(0, &held).await;
    let hand_off = store_fixture.next_hand_off(1, &waiter).await;
    store_fixture.limit_spans(0, 0, 0).await;
    let lease = lease_of(&waiter, hand_off.fencing_token);
    let claimed = store_fixture
        .store(1)
        .renew(&lease, Renewal::default())
        .await;
    assert!(
        matches!(claimed, Err(StoreError::Recovering { .. })),
        "{claimed:?}"
    );
    store_fixture
        .advance_ms(PROVISIONAL_GRANT_MS + SLACK_MS)
        .await;
    store_fixture.expect_granted(0, &store_fixture.call()).await;
}
