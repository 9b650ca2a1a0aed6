//! Brokers of two versions on one store: of one key schema they serve side by side, of two schemas the
//! later one does not serve, and nobody reads what the other has written.

use std::time::Duration;

use leasehold_proto::v1::ErrorReason;
use leasehold_server::store::redis::scripts::SCHEMA;
use leasehold_tests::{
    broker_process::{BrokerOptions, KEY_PREFIX},
    client::{AcquireCall, Client},
    cluster::{ClusterOptions, tag_in},
    cluster_site::ClusterSite,
    deployment::Deployment,
    redis_connection::RedisConnection,
    status::reason,
    until::until,
};

const TTL: Duration = Duration::from_secs(30);
const WAIT: Duration = Duration::from_secs(10);
/// A slot whose era is not among the first that a broker reads.
const SLOT: u16 = 4_000;

#[tokio::test]
async fn with_another_schema_nobody_serves() {
    let mut site = Deployment::start(1).await;
    let client = Client::new("holder", &site.addrs(), 0);
    let now = AcquireCall::new("lock", TTL, Duration::ZERO);
    let held = client.acquire_at(0, &now).await.expect("it is free");
    let mut raw = site.redis.connect().await;
    let era = format!("{KEY_PREFIX}era");
    let ours = raw.must(&["GET", &era]).await.text().to_owned();
    raw.must(&["SET", &era, "later|0|2|in whatever way"]).await;
    let left = keys(&mut raw).await;

    until("the broker that served has gone", async || {
        let another = AcquireCall::new("another", TTL, Duration::ZERO);
        let refused = client.acquire_at(0, &another).await.err()?;
        let reason = reason(&refused);
        (reason == Some(ErrorReason::StoreUnavailable)).then_some(())
    })
    .await;
    let broker = &site.brokers[0];
    until("it says why", async || {
        is_told(&broker.log(), &era).then_some(())
    })
    .await;
    let options = BrokerOptions::on(site.redis.url());
    let refused = options.refused().await;
    assert!(is_told(&refused, &era), "{refused}");
    let (done, told) = options.run("check-config", &["--connect"]).await;
    assert!(!done && is_told(&told, &era), "{told}");
    let (done, told) = options.run("init-store", &[]).await;
    assert!(!done, "{told}");
    assert_eq!(keys(&mut raw).await, left, "nobody has written");

    raw.must(&["SET", &era, &ours]).await;
    until("it serves again", async || {
        client.renew_at(0, &held).await.ok()
    })
    .await;
    client.release_at(0, &held).await.expect("the holder");
    site.brokers[0].terminate();
    assert_eq!(site.brokers[0].ended().await, Some(0));
}

#[tokio::test]
async fn what_a_later_version_adds_is_left_alone() {
    let mut site = Deployment::start(2).await;
    let mut raw = site.redis.connect().await;
    let (era, lock) = (
        format!("{KEY_PREFIX}era"),
        format!("{KEY_PREFIX}{{default:lock}}"),
    );
    raw.must(&["APPEND", &era, "|more"]).await;
    let longer = raw.must(&["GET", &era]).await;
    raw.must(&["HSET", &lock, "later", "x"]).await;
    site.brokers[1].restart().await;
    let client = Client::new("holder", &site.addrs(), 0);
    let now = AcquireCall::new("lock", TTL, Duration::ZERO);
    let first = client.acquire_at(1, &now).await.expect("it is free");
    let wait = AcquireCall::new("lock", TTL, WAIT);
    let (second, ()) = tokio::join!(client.acquire_at(0, &wait), async {
        client.queued_at(1, "lock", 1).await;
        client.release_at(1, &first).await.expect("the holder");
    });
    let second = second.expect("its turn");
    client.renew_at(1, &second).await.expect("the holder");
    client.release_at(0, &second).await.expect("the holder");
    let record = raw.hash(&lock).await;
    assert_eq!(record.get("later").map(String::as_str), Some("x"));
    assert_eq!(record.get("v").map(String::as_str), Some(SCHEMA));
    assert_eq!(raw.must(&["GET", &era]).await, longer);
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_one_slot_of_another_schema_is_enough() {
    let site = ClusterSite::start(ClusterOptions::default(), 0).await;
    let era = format!("{KEY_PREFIX}era{}", tag_in(SLOT));
    for at in 0..site.cluster.count() {
        // The other servers answer MOVED.
        let set = ["SET", &era, "later|0|2|in whatever way"];
        let _ = site.cluster.connect(at).await.command(&set).await;
    }
    let (done, told) = site.options.run("check-config", &["--connect"]).await;
    assert!(!done && is_told(&told, &era), "{told}");
}

fn is_told(text: &str, era: &str) -> bool {
    let mut lines = text.lines();
    lines.any(|line| {
        line.contains("key schema 2")
            && line.contains(era)
            && line.contains(&format!("schema {SCHEMA}"))
    })
}

/// All keys with what they hold.
async fn keys(raw: &mut RedisConnection) -> Vec<(String, String)> {
    let mut keys = Vec::new();
    for (key, _) in raw.keys_with_pttl(KEY_PREFIX).await {
        let dump = raw.must(&["DUMP", &key]).await;
        keys.push((key, format!("{dump:?}")));
    }
    keys.sort();
    keys
}
