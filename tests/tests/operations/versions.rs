//! Brokers of two versions on one store. With the same key schema they serve side by side. A broker
//! whose schema differs from that of the store does not serve, and changes no key.

use std::time::Duration;

use leasehold_proto::v1::ErrorReason;
use leasehold_server::store::redis::scripts::SCHEMA;
use leasehold_tests::{
    broker::{
        deployment::Deployment,
        process::{BrokerOptions, KEY_PREFIX},
    },
    client::unary::{AcquireCall, Client},
    cluster::{
        deployment::{ClusterOptions, hash_tag_for},
        fixture::ClusterFixture,
    },
    redis::connection::RedisConnection,
    status::error_reason,
    until::until,
};

const TTL: Duration = Duration::from_secs(30);
const WAIT: Duration = Duration::from_secs(10);
/// Slot whose era is not among the first eras that a broker reads.
const SLOT: u16 = 4_000;

#[tokio::test]
async fn brokers_with_another_schema_do_not_serve() {
    let mut fixture = Deployment::start(1).await;
    let client = Client::new("holder", &fixture.addrs(), 0);
    let now = AcquireCall::new("lock", TTL, Duration::ZERO);
    let held = client.acquire_at(0, &now).await.expect("it is free");
    let mut raw = fixture.redis.connect().await;
    let era = format!("{KEY_PREFIX}era");
    let ours = raw.must(&["GET", &era]).await.text().to_owned();
    raw.must(&["SET", &era, "later|0|9|in whatever way"]).await;
    let left = keys(&mut raw).await;

    until("the broker that served has gone", async || {
        let another = AcquireCall::new("another", TTL, Duration::ZERO);
        let refused = client.acquire_at(0, &another).await.err()?;
        let reason = error_reason(&refused);
        (reason == Some(ErrorReason::StoreUnavailable)).then_some(())
    })
    .await;
    let broker = &fixture.brokers[0];
    until("it says why", async || {
        is_told(&broker.log(), &era).then_some(())
    })
    .await;
    let options = BrokerOptions::for_store(fixture.redis.url());
    let refused = options.failed_start_output().await;
    assert!(is_told(&refused, &era), "{refused}");
    let (succeeded, output) = options.run("check-config", &["--connect"]).await;
    assert!(!succeeded && is_told(&output, &era), "{output}");
    let (succeeded, output) = options.run("init-store", &[]).await;
    assert!(!succeeded, "{output}");
    assert_eq!(keys(&mut raw).await, left, "no caller has written");

    raw.must(&["SET", &era, &ours]).await;
    until("it serves again", async || {
        client.renew_at(0, &held).await.ok()
    })
    .await;
    client.release_at(0, &held).await.expect("the holder");
    fixture.brokers[0].terminate();
    assert_eq!(fixture.brokers[0].wait_for_exit().await, Some(0));
}

#[tokio::test]
async fn fields_of_a_later_version_are_preserved() {
    let mut fixture = Deployment::start(2).await;
    let mut raw = fixture.redis.connect().await;
    let (era, lock) = (
        format!("{KEY_PREFIX}era"),
        format!("{KEY_PREFIX}{{default:lock}}"),
    );
    raw.must(&["APPEND", &era, "|more"]).await;
    let longer = raw.must(&["GET", &era]).await;
    raw.must(&["HSET", &lock, "later", "x"]).await;
    fixture.brokers[1].restart().await;
    let client = Client::new("holder", &fixture.addrs(), 0);
    let now = AcquireCall::new("lock", TTL, Duration::ZERO);
    let first = client.acquire_at(1, &now).await.expect("it is free");
    let wait = AcquireCall::new("lock", TTL, WAIT);
    let (second, ()) = tokio::join!(client.acquire_at(0, &wait), async {
        client.wait_for_queue_length_at(1, "lock", 1).await;
        client.release_at(1, &first).await.expect("the holder");
    });
    let second = second.expect("its turn");
    client.renew_at(1, &second).await.expect("the holder");
    client.release_at(0, &second).await.expect("the holder");
    let record = raw.hash_fields(&lock).await;
    assert_eq!(record.get("later").map(String::as_str), Some("x"));
    assert_eq!(record.get("v").map(String::as_str), Some(SCHEMA));
    assert_eq!(raw.must(&["GET", &era]).await, longer);
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_one_slot_of_another_schema_is_enough() {
    let fixture = ClusterFixture::start(ClusterOptions::default(), 0).await;
    let era = format!("{KEY_PREFIX}era{}", hash_tag_for(SLOT));
    for at in 0..fixture.cluster.count() {
        // The other servers respond with MOVED.
        let set = ["SET", &era, "later|0|9|in whatever way"];
        let _ = fixture.cluster.connect(at).await.command(&set).await;
    }
    let (succeeded, output) = fixture.options.run("check-config", &["--connect"]).await;
    assert!(!succeeded && is_told(&output, &era), "{output}");
}

fn is_told(text: &str, era: &str) -> bool {
    let mut lines = text.lines();
    lines.any(|line| {
        line.contains("key schema 9")
            && line.contains(era)
            && line.contains(&format!("schema {SCHEMA}"))
    })
}

/// Returns all keys with their serialized values.
async fn keys(raw: &mut RedisConnection) -> Vec<(String, String)> {
    let mut keys = Vec::new();
    for (key, _) in raw.keys_with_pttl(KEY_PREFIX).await {
        let dump = raw.must(&["DUMP", &key]).await;
        keys.push((key, format!("{dump:?}")));
    }
    keys.sort();
    keys
}
