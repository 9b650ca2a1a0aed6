//! What the guarantees assume of Redis is watched: its clock is not stepped, and it evicts nothing.

use std::time::Duration;

use leasehold_proto::v1::ErrorReason;
use leasehold_server::store::redis::era::Era;
use leasehold_tests::{
    broker_process::{BrokerOptions, KEY_PREFIX},
    client::{AcquireCall, Client},
    deployment::Deployment,
    redis_server::{RedisOptions, RedisServer},
    scrape::scrape,
    status::reason,
    store_clock::StoreClock,
    until::until,
};
use tokio::time::sleep;
use tonic::Status;

const TTL: Duration = Duration::from_secs(5);
/// Longer than three probes in vain.
const STOPPED: Duration = Duration::from_secs(4);
const BROKEN: &str = "leasehold_store_broken_assumptions_total";

async fn site() -> Deployment {
    let redis = RedisServer::start_as(RedisOptions {
        clock: Some(StoreClock::build().await),
        options: ["--enable-debug-command", "yes"].map(str::to_owned).into(),
        ..RedisOptions::default()
    });
    let redis = redis.await;
    let options = BrokerOptions::on(redis.url());
    Deployment::start_on(redis, &options, 1).await
}

async fn era(site: &Deployment) -> Era {
    let mut raw = site.redis.connect().await;
    let text = raw.must(&["GET", &format!("{KEY_PREFIX}era")]).await;
    Era::parse(text.text()).expect("the era of a broker that serves")
}

async fn broken(site: &Deployment, assumption: &str) -> f64 {
    let shown = scrape(&site.brokers[0]).await;
    shown.sum(BROKEN, &[("assumption", assumption)])
}

async fn ask(site: &Deployment) -> Result<(), Status> {
    let client = Client::new("one", &site.addrs(), 0);
    let call = AcquireCall::new("a-lock", TTL, Duration::ZERO);
    let held = client.acquire_at(0, &call).await?;
    client.release_at(0, &held).await.map(drop)
}

async fn refused_for(site: &Deployment, why: ErrorReason) {
    until("a refusal", async || {
        let refused = ask(site).await.err()?;
        (reason(&refused) == Some(why)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_clock_that_is_stepped_begins_a_new_era() {
    for step_ms in [3_000, -3_000] {
        let site = site().await;
        ask(&site).await.expect("it grants");
        let before = era(&site).await;
        site.redis.clock().step(step_ms);
        refused_for(&site, ErrorReason::StoreRecovering).await;
        assert_ne!(era(&site).await.id, before.id, "{step_ms}");
        assert_eq!(broken(&site, "clock").await, 1.0, "{step_ms}");
        let log = site.brokers[0].log();
        assert!(log.contains("its clock was stepped by"), "{log}");
    }
}

/// Neither knows how long it stood still.
#[tokio::test]
async fn a_paused_broker_or_redis_begins_no_new_era() {
    let site = site().await;
    let before = era(&site).await;
    site.brokers[0].process().pause().await;
    sleep(STOPPED).await;
    site.brokers[0].process().resume();
    until("grants", async || ask(&site).await.ok()).await;
    site.redis.process().pause().await;
    sleep(STOPPED).await;
    site.redis.process().resume();
    until("grants", async || ask(&site).await.ok()).await;
    let mut raw = site.redis.connect().await;
    raw.must(&["DEBUG", "SLEEP", "2"]).await;
    until("grants", async || ask(&site).await.ok()).await;
    // Two probes later a step would be believed.
    sleep(Duration::from_secs(2)).await;
    assert_eq!(era(&site).await.id, before.id);
    assert_eq!(broken(&site, "clock").await, 0.0);
}

#[tokio::test]
async fn a_server_that_begins_to_evict_is_not_used() {
    let site = site().await;
    ask(&site).await.expect("it grants");
    let before = era(&site).await;
    let mut raw = site.redis.connect().await;
    raw.must(&["CONFIG", "SET", "maxmemory", "1gb"]).await;
    raw.must(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])
        .await;
    refused_for(&site, ErrorReason::StoreUnavailable).await;
    let log = site.brokers[0].log();
    assert!(log.contains("maxmemory-policy allkeys-lru"), "{log}");
    assert_eq!(broken(&site, "no_eviction").await, 1.0);
    raw.must(&["CONFIG", "SET", "maxmemory-policy", "noeviction"])
        .await;
    refused_for(&site, ErrorReason::StoreRecovering).await;
    assert_ne!(era(&site).await.id, before.id);
}
