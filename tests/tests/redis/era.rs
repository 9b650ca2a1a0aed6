//! Era and deployment key in real stores: adoption, creation, loss and recovery.

use std::time::Duration;

use leasehold_server::{
    lock::{DeploymentKey, RecoveryCause},
    store::redis::init::{check_store, init_store},
};
use leasehold_tests::redis::{
    node_fixture::{
        NodeFixture, WAIT_MAX, assert_quarantine, config, rejection_message,
        remaining_quarantine_ms, run_answer_script, stored_era, wait_for_node_end,
    },
    server::RedisServer,
};

#[tokio::test]
async fn a_second_broker_adopts_the_era_and_the_key() {
    let server = RedisServer::start().await;
    let first = NodeFixture::start(config(&server))
        .await
        .node()
        .await
        .clone();
    let mut second = config(&server);
    second.trust_empty_store = false;
    second.bounds.ttl_max_ms = 20_000;
    let second = NodeFixture::start(second).await;
    let node = second.node().await;
    assert_eq!(node.era_id(), first.era_id());
    assert!(node.deployment_key() == first.deployment_key());
    assert_eq!(remaining_quarantine_ms(&node), 0);
    assert_eq!(run_answer_script(&node).await, Ok(42));
    let era = stored_era(&server).await;
    assert_eq!(
        (era.id.as_str(), era.bounds.ttl_max_ms),
        (node.era_id(), 20_000)
    );
    let mut raw = server.connect().await;
    for key in ["lh:era", "lh:key"] {
        assert_eq!(raw.must(&["TTL", key]).await.integer(), -1, "{key}");
    }
}

#[tokio::test]
async fn an_unknown_empty_store_waits_out_the_quarantine() {
    let server = RedisServer::start().await;
    let mut config = config(&server);
    config.trust_empty_store = false;
    let broker = NodeFixture::start(config.clone()).await;
    let node = broker.node().await;
    assert_quarantine(&node, RecoveryCause::Emptied);
    let begun = stored_era(&server).await.quarantine;
    config.bounds.ttl_max_ms = 20_000;
    let second = NodeFixture::start(config).await;
    assert_eq!(second.node().await.era_id(), node.era_id());
    assert_eq!(stored_era(&server).await.quarantine, begun, "larger bounds");
}

#[tokio::test]
async fn a_restart_begins_an_era_with_a_quarantine() {
    for (append_only, cause) in [
        ("no", RecoveryCause::Emptied),
        ("yes", RecoveryCause::Restarted),
    ] {
        let mut server = RedisServer::start_with(&["--appendonly", append_only]).await;
        let broker = NodeFixture::start(config(&server)).await;
        let before = broker.node().await;
        server.restart().await;
        wait_for_node_end(&before, WAIT_MAX).await;
        let after = broker.node().await;
        assert_ne!(after.era_id(), before.era_id());
        assert!(after.deployment_key() == before.deployment_key());
        assert_quarantine(&after, cause);
        assert_eq!(run_answer_script(&after).await, Ok(42));
    }
}

#[tokio::test]
async fn a_flush_is_noticed_and_the_key_comes_back() {
    let server = RedisServer::start().await;
    let broker = NodeFixture::start(config(&server)).await;
    let before = broker.node().await;
    let mut raw = server.connect().await;
    let key = raw.must(&["GET", "lh:key"]).await;
    raw.must(&["FLUSHALL"]).await;
    let took = wait_for_node_end(&before, WAIT_MAX).await;
    assert!(took <= Duration::from_millis(1_500), "{took:?}");
    let after = broker.node().await;
    assert_ne!(after.era_id(), before.era_id());
    assert_quarantine(&after, RecoveryCause::Emptied);
    assert_eq!(raw.must(&["GET", "lh:key"]).await, key);
    assert!(after.deployment_key() == before.deployment_key());
}

#[tokio::test]
async fn a_lost_key_is_written_back_in_the_same_era() {
    let server = RedisServer::start().await;
    let broker = NodeFixture::start(config(&server)).await;
    let before = broker.node().await;
    let mut raw = server.connect().await;
    let key = raw.must(&["GET", "lh:key"]).await;
    raw.must(&["DEL", "lh:key"]).await;
    before.fail("the test says so");
    wait_for_node_end(&before, WAIT_MAX).await;
    let after = broker.node().await;
    assert_eq!(after.era_id(), before.era_id());
    assert_eq!(raw.must(&["GET", "lh:key"]).await, key);
}

#[tokio::test]
async fn a_key_file_must_be_the_deployment_s() {
    let server = RedisServer::start().await;
    let mut with_file = config(&server);
    with_file.deployment_key = Some(DeploymentKey::random());
    let broker = NodeFixture::start(with_file.clone()).await;
    assert!(Some(broker.node().await.deployment_key()) == with_file.deployment_key);
    let mut raw = server.connect().await;
    assert_eq!(raw.must(&["EXISTS", "lh:key"]).await.integer(), 0);
    let without = rejection_message(NodeFixture::try_start(config(&server)).await);
    assert!(without.contains("key is in a file"), "{without}");
    let mut other = config(&server);
    other.deployment_key = Some(DeploymentKey::random());
    let problems = check_store(other.clone()).await.expect_err("another key");
    let other = rejection_message(NodeFixture::try_start(other).await);
    assert!(other.contains("another key"), "{other}");
    assert_eq!(problems, [other]);
}

#[tokio::test]
async fn a_promoted_replica_begins_an_era_with_a_quarantine() {
    let master = RedisServer::start().await;
    let first = NodeFixture::start(config(&master)).await;
    let before = first.node().await;
    let port = master.addr().port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]).await;
    let mut raw = replica.connect().await;
    while raw
        .info("replication", "master_link_status")
        .await
        .as_deref()
        != Some("up")
    {
        tokio::task::yield_now().await;
    }
    assert!(!before.is_closed(), "a first replica changes nothing");
    raw.must(&["REPLICAOF", "NO", "ONE"]).await;
    let second = NodeFixture::start(config(&replica)).await;
    let after = second.node().await;
    assert_ne!(after.era_id(), before.era_id());
    assert_quarantine(&after, RecoveryCause::Promoted);
    assert!(after.deployment_key() == before.deployment_key());
}

#[tokio::test]
async fn brokers_that_come_at_once_agree_on_one_era_and_key() {
    for _ in 0..5 {
        let server = RedisServer::start().await;
        let mut patient = config(&server);
        patient.wait_for_store = true;
        let brokers = futures::future::join_all(
            (0..4).map(|_| async { NodeFixture::start(patient.clone()).await }),
        )
        .await;
        let era = stored_era(&server).await;
        for broker in &brokers {
            let node = broker.node().await;
            assert_eq!(node.era_id(), era.id);
            assert_eq!(node.deployment_key().fingerprint(), era.key_fingerprint);
        }
    }
}

#[tokio::test]
async fn init_store_makes_the_first_era_once() {
    let server = RedisServer::start().await;
    let mut config = config(&server);
    config.trust_empty_store = false;
    assert!(check_store(config.clone()).await.is_ok());
    let mut raw = server.connect().await;
    assert_eq!(raw.must(&["DBSIZE"]).await.integer(), 0);
    raw.must(&["SET", "other", "x"]).await;
    let done = init_store(config.clone()).await.expect("it is empty");
    assert!(done.contains("deployment key was created"), "{done}");
    let broker = NodeFixture::start(config.clone()).await;
    assert_eq!(remaining_quarantine_ms(&*broker.node().await), 0);
    let again = init_store(config).await.expect_err("it is not empty");
    assert!(again.to_string().contains("already holds keys"), "{again}");
}
