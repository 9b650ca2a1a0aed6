//! Assumptions of the guarantees that brokers monitor in Redis: its clock is not stepped, and it
//! evicts no keys.

use std::time::Duration;

use leasehold_proto::v1::ErrorReason;
use leasehold_server::store::redis::era::Era;
use leasehold_tests::{
    broker::{
        deployment::Deployment,
        process::{BrokerOptions, KEY_PREFIX},
    },
    client::unary::{AcquireCall, Client},
    process::private_wall_clock::PrivateWallClock,
    redis::server::{RedisOptions, RedisServer},
    status::error_reason,
    telemetry::scrape::scrape,
    until::until,
};
use tokio::time::sleep;
use tonic::Status;

const TTL: Duration = Duration::from_secs(5);
/// Pause that exceeds three failed health checks.
const STOPPED: Duration = Duration::from_secs(4);
const BROKEN: &str = "leasehold_store_broken_assumptions_total";

async fn fixture() -> Deployment {
    let redis = RedisServer::start_with_options(RedisOptions {
        clock: Some(PrivateWallClock::build().await),
        options: ["--enable-debug-command", "yes"].map(str::to_owned).into(),
        ..RedisOptions::default()
    });
    let redis = redis.await;
    let options = BrokerOptions::for_store(redis.url());
    Deployment::start_on(redis, &options, 1).await
}

async fn era(fixture: &Deployment) -> Era {
    let mut raw = fixture.redis.connect().await;
    let text = raw.must(&["GET", &format!("{KEY_PREFIX}era")]).await;
    Era::parse(text.text()).expect("the era of a broker that serves")
}

async fn broken(fixture: &Deployment, assumption: &str) -> f64 {
    let shown = scrape(&fixture.brokers[0]).await;
    shown.sum(BROKEN, &[("assumption", assumption)])
}

async fn acquire(fixture: &Deployment) -> Result<(), Status> {
    let client = Client::new("one", &fixture.addrs(), 0);
    let call = AcquireCall::new("a-lock", TTL, Duration::ZERO);
    let held = client.acquire_at(0, &call).await?;
    client.release_at(0, &held).await.map(drop)
}

async fn refused_for(fixture: &Deployment, reason: ErrorReason) {
    until("a refusal", async || {
        let refused = acquire(fixture).await.err()?;
        (error_reason(&refused) == Some(reason)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_clock_that_is_stepped_begins_a_new_era() {
    for step_ms in [3_000, -3_000] {
        let fixture = fixture().await;
        acquire(&fixture).await.expect("it grants");
        let before = era(&fixture).await;
        fixture.redis.clock().step(step_ms);
        refused_for(&fixture, ErrorReason::StoreRecovering).await;
        assert_ne!(era(&fixture).await.id, before.id, "{step_ms}");
        assert_eq!(broken(&fixture, "clock").await, 1.0, "{step_ms}");
        let log = fixture.brokers[0].log();
        assert!(log.contains("its clock was stepped by"), "{log}");
    }
}

/// Pauses the broker and Redis, neither of which can measure the duration of its own pause.
#[tokio::test]
async fn a_paused_broker_or_redis_begins_no_new_era() {
    let fixture = fixture().await;
    let before = era(&fixture).await;
    fixture.brokers[0].process().pause().await;
    sleep(STOPPED).await;
    fixture.brokers[0].process().resume();
    until("grants", async || acquire(&fixture).await.ok()).await;
    fixture.redis.process().pause().await;
    sleep(STOPPED).await;
    fixture.redis.process().resume();
    until("grants", async || acquire(&fixture).await.ok()).await;
    let mut raw = fixture.redis.connect().await;
    raw.must(&["DEBUG", "SLEEP", "2"]).await;
    until("grants", async || acquire(&fixture).await.ok()).await;
    // A step of the clock would be accepted after two more health checks.
    sleep(Duration::from_secs(2)).await;
    assert_eq!(era(&fixture).await.id, before.id);
    assert_eq!(broken(&fixture, "clock").await, 0.0);
}

#[tokio::test]
async fn a_server_that_begins_to_evict_is_not_used() {
    let fixture = fixture().await;
    acquire(&fixture).await.expect("it grants");
    let before = era(&fixture).await;
    let mut raw = fixture.redis.connect().await;
    raw.must(&["CONFIG", "SET", "maxmemory", "1gb"]).await;
    raw.must(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])
        .await;
    refused_for(&fixture, ErrorReason::StoreUnavailable).await;
    let log = fixture.brokers[0].log();
    assert!(log.contains("maxmemory-policy allkeys-lru"), "{log}");
    assert_eq!(broken(&fixture, "no_eviction").await, 1.0);
    raw.must(&["CONFIG", "SET", "maxmemory-policy", "noeviction"])
        .await;
    refused_for(&fixture, ErrorReason::StoreRecovering).await;
    assert_ne!(era(&fixture).await.id, before.id);
}
