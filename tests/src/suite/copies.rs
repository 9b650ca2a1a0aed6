//! Leases that others forge, copy or take over, with raw calls beside the probe.

use std::time::Duration;

use leasehold_proto::v1::{ErrorReason, Lease};

use super::{
    language::Cast,
    probe::Probe,
    scene::{SOON, Scene, TTL},
    wire::Ask,
};
use crate::{client::Held, clock::boottime, status::reason, stream_client::StreamClient, tap::Tap};

/// A probe with a lease that the runner has a copy of.
async fn copied(scene: &Scene, ttl: Duration) -> (Probe, Tap, Lease) {
    let tap = Tap::start(scene.deployment.addrs()[0]).await;
    let one = scene.one_at(&[tap.addr()]).await;
    let lease = one.takes(&Ask::one("a").ttl(ttl)).await;
    let copy = tap.leases().pop().expect("it was granted");
    assert_eq!(copy.lease_id, lease.lease_id);
    (one, tap, copy)
}

/// Without the secret of a lease, or with another token, nobody can touch it.
pub async fn a_forged_lease_does_nothing(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    // A JVM that has just started may need more than a second for its first grant on a busy machine.
    let (one, _tap, copy) = copied(&scene, TTL * 3).await;
    let mut secret = copy.clone();
    let last = secret.lease_token.pop().expect("a secret");
    secret.lease_token.push(if last == 'A' { 'B' } else { 'A' });
    let mut token = copy.clone();
    token.grants[0].fencing_token += 1;
    for lease in [secret, token] {
        let sent = boottime();
        let forged = Held { lease, sent };
        let refused = [
            ErrorReason::NotHolder,
            ErrorReason::LeaseNotFound,
            ErrorReason::InvalidField,
        ];
        let released = scene.referee.release_at(0, &forged).await;
        let status = released.expect_err("it is not the lease");
        assert!(
            reason(&status).is_some_and(|why| refused.contains(&why)),
            "{status:?}"
        );
        let renewed = scene.referee.renew_at(0, &forged).await;
        let status = renewed.expect_err("it is not the lease");
        assert!(
            reason(&status).is_some_and(|why| refused.contains(&why)),
            "{status:?}"
        );
    }
    let now = scene.held("a").await;
    assert_eq!(now.lease_id, copy.lease_id);
    scene.renewed("a", &now).await;
    assert!(one.state("a").await.valid && one.loss("a").is_none());
    one.gives("a").await;
}

/// Whoever has the whole lease can give it back; its holder is told at once.
pub async fn a_release_by_a_copy_is_told(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let (one, _tap, lease) = copied(&scene, TTL * 10).await;
    let sent = boottime();
    let released = scene.referee.release_at(0, &Held { lease, sent }).await;
    assert!(!released.expect("it is the lease").already_released);
    let next = scene.takes("a").await;
    let loss = one.lost("a").await;
    // The broker hears of it with the next renewal at the latest.
    assert!(loss.at < sent + TTL * 10 / 3 + SOON, "{loss:?}");
    assert!(
        ["Released", "StoreLost"].contains(&&*loss.reason),
        "{loss:?}"
    );
    assert!(!one.state("a").await.valid);
    let released = one.release("a").await.expect_err("it was lost");
    assert_eq!(released.class, "LeaseLost");
    assert_eq!(scene.held("a").await.token, next.token());
}

/// A lease that another stream has attached is not the probe's any more, and it hears that.
pub async fn a_lease_that_moved_away_is_told(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let (one, tap, copy) = copied(&scene, TTL * 10).await;
    let mut thief = StreamClient::open(scene.deployment.addrs()[0]).await;
    let begun = boottime();
    thief.attach(&copy, 2).await;
    let loss = one.lost("a").await;
    assert_eq!(loss.reason, "Moved");
    assert!(loss.at < begun + SOON, "{loss:?}");
    assert!(!one.state("a").await.valid);
    let released = one.release("a").await.expect_err("it was lost");
    assert_eq!(
        (&*released.class, released.reason.as_deref()),
        ("LeaseLost", Some("Moved"))
    );
    assert_eq!(scene.held("a").await.lease_id, copy.lease_id);
    assert_eq!(tap.connections(), 1);
}
