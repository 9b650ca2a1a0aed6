//! Warnings about settings with which an isolated master continues to accept writes beside its
//! successor.

use std::time::Duration;

use leasehold_tests::{
    broker::process::{BrokerOptions, BrokerProcess},
    sentinel::deployment::{SentinelDeployment, SentinelOptions},
    until::until,
};

const DOWN_AFTER: Duration = Duration::from_secs(60);

async fn logged(broker: &BrokerProcess, what: &str) {
    until(what, async || broker.log().contains(what).then_some(())).await;
}

/// A master that is isolated together with one of two replicas accepts writes without a limit of
/// time.
#[tokio::test(flavor = "multi_thread")]
async fn settings_that_allow_two_masters_are_reported_at_start_and_after_a_change() {
    let redis = SentinelDeployment::start(SentinelOptions {
        min_replicas_to_write: 1,
        down_after: DOWN_AFTER,
        ..SentinelOptions::default()
    })
    .await;
    let options = BrokerOptions::for_store(redis.url());
    options.init_store().await;
    let broker = BrokerProcess::start(&options).await;
    logged(&broker, "has 2 replicas but needs only 1 of them").await;
    logged(
        &broker,
        "G2 is not guaranteed unless all brokers configure the same Sentinels",
    )
    .await;

    let mut raw = redis.connect(0).await;
    let mut set = async |name, value| drop(raw.must(&["CONFIG", "SET", name, value]).await);
    set("min-replicas-to-write", "2").await;
    set("min-replicas-max-lag", "30").await;
    logged(&broker, "accepts writes for up to 32 s").await;
    logged(&broker, "store.former_master_max is only 12000 ms").await;
    set("min-replicas-max-lag", "2").await;
    set("min-replicas-to-write", "0").await;
    logged(&broker, "has 2 replicas but needs only 0 of them").await;
    let times_logged = broker.log().matches("G2 is not guaranteed").count();
    assert_eq!(times_logged, 3, "each once");
}

#[tokio::test(flavor = "multi_thread")]
async fn safe_settings_are_not_reported() {
    let redis = SentinelDeployment::start(SentinelOptions {
        min_replicas_to_write: 2,
        down_after: DOWN_AFTER,
        ..SentinelOptions::default()
    })
    .await;
    let options = BrokerOptions::for_store(redis.url());
    options.init_store().await;
    let (succeeded, output) = options.run("check-config", &["--connect"]).await;
    assert!(succeeded, "{output}");
    for what in ["G2", "min-replicas", "down-after"] {
        assert!(!output.contains(what), "{output}");
    }
}
