//! The floor of tokens: each grant of an era has a larger token than the floor, which is a token of
//! an earlier era whose clock was ahead.

use leasehold_server::{
    lock::IDLE_RECORD_TTL_MS,
    store::{Checked, Renewal},
};

use crate::store_fixture::{SLACK_MS, StoreFixture, lease_of};

/// Time by which the earlier clock was ahead, longer than a behaviour takes.
const AHEAD_MS: u64 = 3_600_000;

pub async fn a_grant_has_a_larger_token_than_the_floor(store_fixture: &StoreFixture) {
    let before = store_fixture.call();
    let before = store_fixture.expect_granted(0, &before).await;
    let floor = store_fixture.set_token_floor(AHEAD_MS).await;
    let renewed = store_fixture.store(0).renew(&before, Renewal::default());
    let renewed = renewed.await.expect("renew").expect("it is held");
    assert_eq!(renewed.fencing_token, before.fencing_token);
    let token = before.fencing_token;
    let checked = store_fixture.store(0).check(&before.lock, token).await;
    assert!(matches!(checked, Ok(Checked::Live { .. })), "{checked:?}");
    store_fixture.expect_released(0, &before).await;
    for n in 1..3 {
        let call = store_fixture.call();
        let lease = store_fixture.expect_granted(0, &call).await;
        assert_eq!(lease.fencing_token.get(), floor.get() + n);
        store_fixture.expect_released(0, &lease).await;
    }
}

pub async fn a_hand_off_has_a_larger_token_than_the_floor(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let (own, remote) = (store_fixture.waiting_call(), store_fixture.waiting_call());
    store_fixture.expect_queued(0, &own).await;
    store_fixture.expect_queued(1, &remote).await;
    let floor = store_fixture.set_token_floor(AHEAD_MS).await;
    store_fixture.expect_released(0, &held).await;
    let hand_off = store_fixture.next_hand_off(0, &own).await;
    assert_eq!(hand_off.fencing_token.get(), floor.get() + 1);
    let own = lease_of(&own, hand_off.fencing_token);
    store_fixture.expect_released(0, &own).await;
    let hand_off = store_fixture.next_hand_off(1, &remote).await;
    assert_eq!(hand_off.fencing_token.get(), floor.get() + 2);
}

pub async fn a_record_is_kept_until_the_clock_has_passed_its_last_token(
    store_fixture: &StoreFixture,
) {
    let before = store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture.expect_released(0, &before).await;
    let floor = store_fixture.set_token_floor(AHEAD_MS).await;
    for n in 1..3 {
        let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
        assert_eq!(lease.fencing_token.get(), floor.get() + n);
        store_fixture.expect_released(0, &lease).await;
        store_fixture
            .advance_ms(IDLE_RECORD_TTL_MS + SLACK_MS)
            .await;
    }
}

pub async fn a_floor_that_the_clock_has_passed_has_no_effect(store_fixture: &StoreFixture) {
    let before = store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture.expect_released(0, &before).await;
    let floor = store_fixture.set_token_floor(0).await;
    store_fixture.advance_ms(SLACK_MS).await;
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    assert!(lease.fencing_token.get() >= floor.get() + 1_000 * SLACK_MS);
}
