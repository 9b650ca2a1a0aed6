//! Ends of leases without a release: reported once, to the broker whose command found them.

use leasehold_server::{
    lock::{
        AcquireCommand, ExpectedAttachment, ReleaseScope, RevokeCommand, RevokeMode, expiry_ms,
    },
    store::{LeaseEndCause, LeaseEndEvent, LeaseRejection},
};

use crate::store_fixture::{SLACK_MS, StoreFixture, TTL_MS, released_now, with_hold_and_delay};

/// Receives the next lease end of broker `n` and checks its kind, its call and its time since the
/// grant, which may exceed `held_ms` by at most [`SLACK_MS`].
async fn expect_lease_end(
    store_fixture: &StoreFixture,
    n: usize,
    call: &AcquireCommand,
    kind: LeaseEndCause,
    held_ms: u64,
) -> LeaseEndEvent {
    let ending = store_fixture.next_lease_end(n).await;
    assert_eq!(ending.kind, kind);
    assert_eq!(
        (ending.lease_id, &ending.owner),
        (call.lease_id, &call.owner)
    );
    let most_ms = held_ms + SLACK_MS;
    assert!((held_ms..=most_ms).contains(&ending.held_ms), "{ending:?}");
    ending
}

/// Asserts that no broker receives a further lease end.
async fn expect_no_more_ends(store_fixture: &StoreFixture) {
    for n in 0..4 {
        let more = store_fixture.received_lease_ends(n).await;
        assert!(more.is_empty(), "broker {n} was notified of {more:?}");
    }
}

pub async fn an_expiry_is_reported_once_to_the_broker_that_detected_it(
    store_fixture: &StoreFixture,
) {
    let mut call = store_fixture.call();
    call.owner.id = "of|broker!\n0".to_owned();
    let held = store_fixture.expect_granted(0, &call).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    let next = store_fixture.acquire_long(1).await;
    let ending = expect_lease_end(
        store_fixture,
        1,
        &call,
        LeaseEndCause::Expired,
        expiry_ms(TTL_MS),
    )
    .await;
    assert_eq!(ending.fencing_token, held.fencing_token.get());
    assert_eq!(ending.reason, "");
    assert_eq!(
        store_fixture.renew(0, &held).await,
        Err(LeaseRejection::Expired)
    );
    assert_eq!(
        store_fixture.release(2, &held).await,
        Err(LeaseRejection::Expired)
    );
    store_fixture.expect_released(3, &next).await;
    expect_no_more_ends(store_fixture).await;
}

pub async fn a_release_is_not_reported_as_a_lease_end(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    store_fixture.expect_released(0, &held).await;
    let taken_back = store_fixture.call();
    store_fixture.expect_granted(1, &taken_back).await;
    store_fixture.cancel(1, &taken_back).await;
    store_fixture.acquire_long(2).await;
    expect_no_more_ends(store_fixture).await;
}

pub async fn an_end_by_max_hold_is_reported_with_that_cause(store_fixture: &StoreFixture) {
    let call = with_hold_and_delay(store_fixture.call(), 5_000, 0);
    store_fixture.expect_granted(0, &call).await;
    store_fixture.advance_ms(expiry_ms(5_000)).await;
    store_fixture.acquire_long(3).await;
    expect_lease_end(
        store_fixture,
        3,
        &call,
        LeaseEndCause::MaxHold,
        expiry_ms(5_000),
    )
    .await;
    expect_no_more_ends(store_fixture).await;
}

pub async fn a_revocation_is_reported_with_its_reason(store_fixture: &StoreFixture) {
    let revoke = |call: &AcquireCommand, force| RevokeCommand {
        lock: call.lock.clone(),
        lease_id: call.lease_id,
        reason: "it hangs | really!".to_owned(),
        grace_ms: 0,
        lock_delay_ms: None,
        mode: force,
    };
    let at_once = store_fixture.call();
    store_fixture.expect_granted(0, &at_once).await;
    let command = revoke(&at_once, RevokeMode::Immediate);
    let reply = store_fixture.store(1).revoke(&command).await;
    assert!(matches!(reply, Ok(Ok(_))), "{reply:?}");
    let ending = expect_lease_end(store_fixture, 1, &at_once, LeaseEndCause::Revoked, 0).await;
    assert_eq!(ending.reason, command.reason);
    let in_time = store_fixture.call();
    store_fixture.expect_granted(0, &in_time).await;
    let command = revoke(&in_time, RevokeMode::Graceful);
    let reply = store_fixture.store(1).revoke(&command).await;
    assert!(matches!(reply, Ok(Ok(_))), "{reply:?}");
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    store_fixture.acquire_long(2).await;
    let ending = expect_lease_end(
        store_fixture,
        2,
        &in_time,
        LeaseEndCause::Revoked,
        expiry_ms(TTL_MS),
    )
    .await;
    assert_eq!(ending.reason, command.reason);
    expect_no_more_ends(store_fixture).await;
}

pub async fn a_lapse_is_reported_as_an_expiry(store_fixture: &StoreFixture) {
    let call = store_fixture.call();
    let held = store_fixture.expect_granted(0, &call).await;
    let lapsed =
        store_fixture
            .store(2)
            .release(&held, ReleaseScope::ExpireNow, ExpectedAttachment::Any);
    assert_eq!(lapsed.await, Ok(released_now(0)));
    expect_lease_end(store_fixture, 2, &call, LeaseEndCause::Expired, 0).await;
    expect_no_more_ends(store_fixture).await;
}
