//! Scenarios of leases that are forged, copied or attached by raw calls beside the probe.

use std::time::Duration;

use leasehold_proto::v1::{ErrorReason, Lease};

use super::{
    language::Cast,
    messages::ProbeAcquire,
    probe::Probe,
    scenario::{DELAY_MAX, ScenarioFixture, TTL},
};
use crate::{
    client::{stream::StreamClient, unary::HeldLease},
    clock::boottime,
    net::capturing_proxy::CapturingProxy,
    status::error_reason,
};

/// Starts a probe with a lease, and returns a copy of the lease to the runner.
async fn start_with_lease_copy(
    fixture: &ScenarioFixture,
    ttl: Duration,
) -> (Probe, CapturingProxy, Lease) {
    let capture = CapturingProxy::start(fixture.deployment.addrs()[0]).await;
    let one = fixture.start_tested_probe_at(&[capture.addr()]).await;
    let lease = one
        .expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(ttl))
        .await;
    let copy = capture.granted_leases().pop().expect("it was granted");
    assert_eq!(copy.lease_id, lease.lease_id);
    (one, capture, copy)
}

/// A lease with a wrong secret or a wrong fencing token is rejected.
pub async fn a_forged_lease_has_no_effect(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    // On a busy machine a JVM that has just started may need more than a second for its first
    // grant.
    let (one, _tap, copy) = start_with_lease_copy(&fixture, TTL * 3).await;
    let mut secret = copy.clone();
    let last = secret.lease_token.pop().expect("a secret");
    secret.lease_token.push(if last == 'A' { 'B' } else { 'A' });
    let mut token = copy.clone();
    token.grants[0].fencing_token += 1;
    for lease in [secret, token] {
        let sent = boottime();
        let forged = HeldLease {
            lease,
            sent_at: sent,
        };
        let refused = [
            ErrorReason::NotHolder,
            ErrorReason::LeaseNotFound,
            ErrorReason::InvalidField,
        ];
        let released = fixture.observer.release_at(0, &forged).await;
        let status = released.expect_err("it is not the lease");
        assert!(
            error_reason(&status).is_some_and(|reason| refused.contains(&reason)),
            "{status:?}"
        );
        let renewed = fixture.observer.renew_at(0, &forged).await;
        let status = renewed.expect_err("it is not the lease");
        assert!(
            error_reason(&status).is_some_and(|reason| refused.contains(&reason)),
            "{status:?}"
        );
    }
    let now = fixture.expect_holder("a").await;
    assert_eq!(now.lease_id, copy.lease_id);
    fixture.wait_until_renewed("a", &now).await;
    assert!(one.state("a").await.valid && one.loss("a").is_none());
    one.expect_released("a").await;
}

/// Any process that has the complete lease can release it. The holder is then notified.
pub async fn a_release_by_a_copy_is_reported_to_the_holder(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let (one, _tap, lease) = start_with_lease_copy(&fixture, TTL * 10).await;
    let sent = boottime();
    let released = fixture
        .observer
        .release_at(
            0,
            &HeldLease {
                lease,
                sent_at: sent,
            },
        )
        .await;
    assert!(!released.expect("it is the lease").already_released);
    let next = fixture.expect_acquired("a").await;
    let loss = one.wait_for_loss("a").await;
    // The broker detects the release with the next renewal at the latest.
    assert!(loss.at < sent + TTL * 10 / 3 + DELAY_MAX, "{loss:?}");
    assert!(
        ["Released", "StoreLost"].contains(&&*loss.reason),
        "{loss:?}"
    );
    assert!(!one.state("a").await.valid);
    let released = one.release("a").await.expect_err("it was lost");
    assert_eq!(released.class, "LeaseLost");
    assert_eq!(fixture.expect_holder("a").await.token, next.token());
}

/// A lease that another stream has attached leaves the probe, which is notified.
pub async fn a_lease_that_moved_away_is_reported_to_the_former_holder(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let (one, capture, copy) = start_with_lease_copy(&fixture, TTL * 10).await;
    let mut other_stream = StreamClient::open(fixture.deployment.addrs()[0]).await;
    let started_at = boottime();
    other_stream.attach(&copy, 2).await;
    let loss = one.wait_for_loss("a").await;
    assert_eq!(loss.reason, "Moved");
    assert!(loss.at < started_at + DELAY_MAX, "{loss:?}");
    assert!(!one.state("a").await.valid);
    let released = one.release("a").await.expect_err("it was lost");
    assert_eq!(
        (&*released.class, released.reason.as_deref()),
        ("LeaseLost", Some("Moved"))
    );
    assert_eq!(fixture.expect_holder("a").await.lease_id, copy.lease_id);
    assert_eq!(capture.connections(), 1);
}
