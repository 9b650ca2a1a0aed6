//! Scenarios of a held lock: exclusive, renewed by heartbeats, and released.

use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use serde_json::json;
use tokio::time::sleep;

use super::{
    language::Cast,
    messages::{CLOCK_STEP, ProbeAcquire},
    scenario::{DELAY_MAX, ScenarioFixture, TTL},
};
use crate::{
    clock::boottime, load::store_expiry::store_expiry, net::capturing_proxy::CapturingProxy,
    scale::print_figures,
};

const WAIT: Duration = Duration::from_millis(500);
/// TTL of which more than half passes while nothing is held.
const IDLE_TTL: Duration = Duration::from_secs(8);
/// Number of leases that one stream can hold.
const LEASES: usize = 1_000;
/// TTL of each lease. A slow machine may delay the heartbeats of a program by seconds.
const LEASE_TTL: Duration = Duration::from_secs(20);
/// Number of concurrent inspections by the runner.
const CONCURRENT_READS: usize = 16;

/// The record in the store matches the lease of the probe. After a release the next caller acquires
/// the lock at once, with a larger token.
pub async fn a_lock_is_held_and_given_back(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let lease = one.expect_acquired(&ProbeAcquire::exclusive("a")).await;
    let held = fixture.expect_holder("a").await;
    assert_eq!(
        (&*held.lease_id, held.token),
        (&*lease.lease_id, lease.token())
    );
    assert!(lease.valid && lease.lost_reason.is_none());
    assert!(fixture.is_rejected_as_held("a").await);
    one.expect_released("a").await;
    assert_eq!(fixture.holder("a").await, None, "the release was confirmed");
    let next = fixture.expect_acquired("a").await;
    assert!(next.token() > lease.token());
    assert!(!one.state("a").await.valid);
    assert!(one.loss("a").is_none(), "a release is no loss");
}

/// After a pause without leases, the latest heartbeat is older than the call. The validity of the
/// grant must count from the call, so that the grant has its full TTL.
pub async fn a_client_that_was_idle_has_a_lock_at_once(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let ask = ProbeAcquire::exclusive("a").with_ttl(IDLE_TTL);
    one.expect_acquired(&ask).await;
    sleep(IDLE_TTL / 8).await;
    one.expect_released("a").await;
    sleep(IDLE_TTL * 5 / 8).await;
    let started_at = boottime();
    let lease = one.expect_acquired(&ask).await;
    let took = lease.at.saturating_sub(started_at);
    // The next heartbeat would be a twelfth later.
    assert!(took < IDLE_TTL / 20, "{took:?}");
    assert!(one.state("a").await.valid);
    one.expect_released("a").await;
}

/// A rejected try names the holder, and the time after which to retry.
pub async fn a_try_on_a_held_lock_names_the_holder(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let (one, other) = (
        fixture.start_tested_probe().await,
        fixture.start_other_probe().await,
    );
    let reason = ProbeAcquire::exclusive("a")
        .with_ttl(TTL * 5)
        .with_field("reason", "nightly work");
    let held = other.expect_acquired(&reason).await;
    let tried = one.try_acquire(&ProbeAcquire::exclusive("a")).await;
    assert!(tried.expect("an answer").is_none());
    let call = one
        .acquire(&ProbeAcquire::exclusive("a").with_wait(Duration::ZERO))
        .await;
    let failure = call.expect_err("it is held");
    assert_eq!(failure.class, "Held");
    let [holder] = &*failure.holders else {
        panic!("one holds it: {failure:?}")
    };
    assert_eq!(
        (&*holder.lease_id, holder.token),
        (&*held.lease_id, held.token())
    );
    assert_eq!(
        (&*holder.owner, &*holder.reason),
        ("probe-1", "nightly work")
    );
    assert!(failure.message.contains("probe-1"), "{failure:?}");
    let retry_after = failure.retry_after_ms.expect("when to try again");
    assert!(retry_after > 0.0 && retry_after <= store_expiry(TTL * 5).as_secs_f64() * 1e3);
}

/// A wait ends at its time-out, not earlier, and names the holder. The caller has then left the
/// queue.
pub async fn a_wait_that_timed_out_reports_it_and_leaves_the_queue(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let held = fixture.expect_acquired("a").await;
    let started_at = boottime();
    let call = one.start_acquire(&ProbeAcquire::exclusive("a").with_wait(WAIT));
    let (at, outcome) = call.outcome().await;
    let failure = outcome.expect_err("it is held");
    assert_eq!(failure.class, "WaitTimeout");
    assert_eq!(failure.holders[0].token, held.token());
    assert!(failure.retry_after_ms.is_some_and(|time| time > 0.0));
    let waited = at - started_at;
    assert!(waited >= WAIT && waited < WAIT + DELAY_MAX, "{waited:?}");
    fixture.wait_for_queue_length("a", 0).await;
}

/// Any client can read the holder of a lock without waiting for the lock.
pub async fn the_holder_of_a_lock_can_be_observed(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let (one, other) = (
        fixture.start_tested_probe().await,
        fixture.start_other_probe().await,
    );
    assert!(one.observe("a").await.is_none());
    let lease = other
        .expect_acquired(&ProbeAcquire::exclusive("a").with_field("reason", "to be seen"))
        .await;
    let seen = one.observe("a").await.expect("it is held");
    assert_eq!(
        (seen.lease_id, seen.token),
        (lease.lease_id.clone(), lease.token())
    );
    assert_eq!((&*seen.owner, &*seen.reason), ("probe-1", "to be seen"));
    assert!(seen.remaining_ms > 0.0);
    other.expect_released("a").await;
    assert!(one.observe("a").await.is_none());
}

/// A program whose own code blocks for three times the TTL keeps its lock.
pub async fn a_blocked_main_thread_keeps_its_lock(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let lease = one
        .expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(TTL))
        .await;
    let rival = fixture.enqueue_rival("a").await;
    let started_at = boottime();
    let time = TTL * 3;
    let blocked = one.start_command_with("block", json!({"ms": time.as_secs() * 1_000}));
    // The request is sent at once, and answered when the thread is free again.
    let state = one.state("a").await;
    assert!(
        state.at + CLOCK_STEP >= started_at + time,
        "nothing was blocked: {state:?}"
    );
    blocked.outcome().await.1.expect("it has ended");
    assert!(state.valid, "{state:?}");
    assert!(one.loss("a").is_none() && !rival.is_granted());
    let held = fixture.expect_holder("a").await;
    assert_eq!(
        (held.lease_id, held.token),
        (lease.lease_id, lease.tokens[0])
    );
    one.expect_released("a").await;
    rival.wait_for_grant().await;
}

/// A process keeps a thousand leases on one connection, and each of them is renewed.
pub async fn a_thousand_leases_live_on_one_connection(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let capture = CapturingProxy::start(fixture.deployment.addrs()[0]).await;
    let one = fixture.start_tested_probe_at(&[capture.addr()]).await;
    let names: Vec<_> = (0..LEASES).map(|lock| format!("lock-{lock}")).collect();
    let started_at = boottime();
    let calls = names
        .iter()
        .map(|name| one.start_acquire(&ProbeAcquire::exclusive(name).with_ttl(LEASE_TTL)));
    let calls: Vec<_> = calls.collect();
    let mut leases = Vec::new();
    for call in calls {
        leases.push(call.lease().await.expect("it is free"));
    }
    let took = boottime() - started_at;
    // All requests at once would be a load of their own.
    let looks = stream::iter(&names).map(|name| fixture.expect_holder(name));
    let looks: Vec<_> = looks.buffered(CONCURRENT_READS).collect().await;
    let renewals = stream::iter(names.iter().zip(&looks));
    let renewals = renewals.map(|(name, seen)| fixture.wait_until_renewed(name, seen));
    renewals.buffered(CONCURRENT_READS).collect::<()>().await;
    let kept = looks
        .iter()
        .zip(&leases)
        .filter(|(held, lease)| (&*held.lease_id, held.token) == (&*lease.lease_id, lease.token()));
    let lost = names.iter().filter(|name| one.loss(name).is_some()).count();
    let kept = kept.count();
    print_figures(&format!(
        "suite {:?}: leases={LEASES} taken_in={}ms kept={kept} lost={lost} connections={}",
        cast.one,
        took.as_millis(),
        capture.connections()
    ));
    assert_eq!((kept, lost, capture.connections()), (LEASES, 0, 1));
}
