//! `store.wait_replicas`: nobody is told of a grant that only the master has.

use std::time::Duration;

use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    broker_process::BrokerOptions,
    client::{AcquireCall, Client},
    clock::boottime,
    deployment::Deployment,
    redis_server::RedisServer,
    status::reason,
    until::until,
};
use tokio::time::timeout;
use tonic::Code;

const TTL: Duration = Duration::from_secs(30);
const NOW: Duration = Duration::ZERO;
/// An attempt that got no answer is undone after its caller's time to come again.
const UNDONE_WITHIN: Duration = Duration::from_secs(10);
const UNTOLD: Duration = Duration::from_secs(2);

/// One broker on a master with one replica, and a client of it.
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
    let mut options = BrokerOptions::on(master.url());
    let setting = ("LEASEHOLD__STORE__WAIT_REPLICAS", "1");
    options.env = vec![(setting.0.to_owned(), setting.1.to_owned())];
    let deployment = Deployment::start_on(master, &options, 1).await;
    let client = Client::new("caller", &deployment.addrs(), 0);
    (deployment, replica, client)
}

#[tokio::test]
async fn a_grant_that_no_replica_has_is_not_told_and_undone() {
    let (deployment, replica, client) = replicated().await;
    let call = AcquireCall::new("told", TTL, NOW);
    client.acquire_at(0, &call).await.expect("in both servers");

    replica.process().pause().await;
    let mut raw = deployment.redis.connect().await;
    let count = raw.must(&["WAIT", "1", "100"]).await.integer();
    assert_eq!(count, 1, "without a write of its own WAIT proves nothing");
    let call = AcquireCall::new("untold", TTL, NOW);
    let begun = boottime();
    let refused = client.acquire_at(0, &call).await;
    let refused = refused.expect_err("the replica does not have it");
    assert_eq!(reason(&refused), Some(ErrorReason::StoreUnavailable));
    assert!(boottime() - begun < Duration::from_secs(2), "{refused:?}");

    let undone = until("the grant is taken back", async || {
        let held = client.get_lock_at(0, "untold").await;
        held.is_err_and(|status| status.code() == Code::NotFound)
            .then_some(())
    });
    let undone = timeout(UNDONE_WITHIN, undone).await;
    undone.expect("nobody knows of it");
    replica.process().resume();
    let call = AcquireCall::new("untold", TTL, NOW);
    client.acquire(&call).await.expect("in both servers again");
}

#[tokio::test]
async fn a_hand_off_that_no_replica_has_is_not_told_before_one_has_it() {
    let (_deployment, replica, client) = replicated().await;
    let call = AcquireCall::new("a-lock", TTL, NOW);
    let held = client.acquire_at(0, &call).await.expect("in both servers");
    let mut waiting = client.open_at(0, &AcquireCall::new("a-lock", TTL, TTL));
    client.queued_at(0, "a-lock", 1).await;
    replica.process().pause().await;
    client.release_at(0, &held).await.expect("it is ours");
    let told = timeout(UNTOLD, &mut waiting).await;
    assert!(told.is_err(), "{told:?}");
    replica.process().resume();
    let granted = timeout(UNDONE_WITHIN, waiting).await;
    let granted = granted.expect("told in time").expect("no panic");
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
    assert_eq!(reason(&refused), Some(ErrorReason::StoreFull));
    client.renew_at(0, &held).await.expect("in both servers");

    replica.process().pause().await;
    let refused = client.renew_at(0, &held).await;
    let refused = refused.expect_err("the replica does not have it");
    assert_eq!(reason(&refused), Some(ErrorReason::StoreUnavailable));
    replica.process().resume();
    until("the replica has it", async || {
        client.renew_at(0, &held).await.ok()
    })
    .await;
    client.release_at(0, &held).await.expect("it is ours");
}
