//! `store.wait_replicas`: no grant is reported before a replica has it.

use std::time::Duration;

use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    broker::{deployment::Deployment, process::BrokerOptions},
    client::unary::{AcquireCall, Client},
    clock::boottime,
    redis::server::RedisServer,
    status::error_reason,
    until::until,
};
use tokio::time::timeout;
use tonic::Code;

const TTL: Duration = Duration::from_secs(30);
const NOW: Duration = Duration::ZERO;
/// Upper bound of the time until an unconfirmed attempt is rolled back, which includes the time for
/// a repeat.
const ROLLED_BACK_WITHIN: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(2);

/// Starts one broker on a master with one replica, and a client of the broker.
async fn replicated() -> (Deployment, RedisServer, Client) {
    let master = RedisServer::start().await;
    let port = master.addr().port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]).await;
    let mut raw = master.connect().await;
    until("the replica is in sync", async || {
        raw.must(&["SET", "marker", "1", "PX", "1"]).await;
        let count = raw.must(&["WAIT", "1", "10"]).await.integer();
        (count == 1).then_some(())
    })
    .await;
    let mut options = BrokerOptions::for_store(master.url());
    let setting = ("LEASEHOLD__STORE__WAIT_REPLICAS", "1");
    options.env = vec![(setting.0.to_owned(), setting.1.to_owned())];
    let deployment = Deployment::start_on(master, &options, 1).await;
    let client = Client::new("caller", &deployment.addrs(), 0);
    (deployment, replica, client)
}

#[tokio::test]
async fn a_grant_without_a_replica_is_not_reported_and_rolled_back() {
    let (deployment, replica, client) = replicated().await;
    let call = AcquireCall::new("notified", TTL, NOW);
    client.acquire_at(0, &call).await.expect("in both servers");

    replica.process().pause().await;
    let mut raw = deployment.redis.connect().await;
    let count = raw.must(&["WAIT", "1", "100"]).await.integer();
    assert_eq!(count, 1, "without a write of its own WAIT proves nothing");
    let call = AcquireCall::new("untold", TTL, NOW);
    let started_at = boottime();
    let refused = client.acquire_at(0, &call).await;
    let refused = refused.expect_err("the replica does not have it");
    assert_eq!(error_reason(&refused), Some(ErrorReason::StoreUnavailable));
    assert!(
        boottime() - started_at < Duration::from_secs(2),
        "{refused:?}"
    );

    let undone = until("the grant is taken back", async || {
        let held = client.get_lock_at(0, "untold").await;
        held.is_err_and(|status| status.code() == Code::NotFound)
            .then_some(())
    });
    let undone = timeout(ROLLED_BACK_WITHIN, undone).await;
    undone.expect("no caller knows of it");
    replica.process().resume();
    let call = AcquireCall::new("untold", TTL, NOW);
    client.acquire(&call).await.expect("in both servers again");
}

#[tokio::test]
async fn a_hand_off_is_not_reported_before_a_replica_has_it() {
    let (_deployment, replica, client) = replicated().await;
    let call = AcquireCall::new("a-lock", TTL, NOW);
    let held = client.acquire_at(0, &call).await.expect("in both servers");
    let mut waiting = client.start_acquire_at(0, &AcquireCall::new("a-lock", TTL, TTL));
    client.wait_for_queue_length_at(0, "a-lock", 1).await;
    replica.process().pause().await;
    client.release_at(0, &held).await.expect("it is ours");
    let timed_out = timeout(SILENCE, &mut waiting).await;
    assert!(timed_out.is_err(), "{timed_out:?}");
    replica.process().resume();
    let granted = timeout(ROLLED_BACK_WITHIN, waiting).await;
    let granted = granted.expect("notified in time").expect("no panic");
    assert!(granted.expect("granted").token() > held.token());
}

#[tokio::test]
async fn without_memory_leases_go_on_if_a_replica_has_them() {
    let (deployment, replica, client) = replicated().await;
    let call = AcquireCall::new("held", TTL, NOW);
    let held = client.acquire_at(0, &call).await.expect("in both servers");
    let mut raw = deployment.redis.connect().await;
    raw.must(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let other = AcquireCall::new("other", TTL, NOW);
    let refused = client.acquire_at(0, &other).await;
    let refused = refused.expect_err("there is no memory");
    assert_eq!(error_reason(&refused), Some(ErrorReason::StoreFull));
    client.renew_at(0, &held).await.expect("in both servers");

    replica.process().pause().await;
    let refused = client.renew_at(0, &held).await;
    let refused = refused.expect_err("the replica does not have it");
    assert_eq!(error_reason(&refused), Some(ErrorReason::StoreUnavailable));
    replica.process().resume();
    until("the replica has it", async || {
        client.renew_at(0, &held).await.ok()
    })
    .await;
    client.release_at(0, &held).await.expect("it is ours");
}
