//! AcquireAll over gRPC: the leases of one caller, and the state after a failed call.

#![expect(
    clippy::disallowed_methods,
    reason = "a waiting call is a task of the test"
)]

use std::time::Duration;

use leasehold_proto::v1::{
    AcquireAllRequest, ErrorReason, LockMode, LockTarget, Owner,
    lock_service_client::LockServiceClient,
};
use leasehold_tests::{
    broker::{deployment::Deployment, process::KEY_PREFIX},
    client::unary::{AcquireCall, Client, channel},
    clock::boottime,
    load::callers::lock_name,
    status::error_reason,
};

const TTL: Duration = Duration::from_secs(1);

async fn start_deployment() -> (Deployment, Client) {
    let deployment = Deployment::start(1).await;
    let client = Client::new("worker-1", &deployment.addrs(), 0);
    (deployment, client)
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn exclusive_call(name: &str) -> AcquireCall {
    AcquireCall::new(name, Duration::from_secs(60), Duration::ZERO)
}

#[tokio::test]
async fn all_are_granted_under_one_lease_in_the_requested_order() {
    let (_deployment, client) = start_deployment().await;
    let call = exclusive_call("");
    let held = client.acquire_all(&names(&["c", "a", "b"]), &call).await;
    let held = held.expect("all are free");
    let grants = held.lease.grants.iter();
    let order = grants.map(|grant| grant.target.clone().expect("a target").name);
    assert_eq!(order.collect::<Vec<_>>(), ["c", "a", "b"]);
    let again = client.acquire_all(&names(&["b", "a", "c"]), &call).await;
    let again = again.expect("the same call");
    assert_eq!(again.lease.lease_id, held.lease.lease_id);
    assert_eq!(again.lease.grants[0], held.lease.grants[2]);
    let fewer = client.acquire_all(&names(&["a", "b"]), &call).await;
    let status = fewer.expect_err("another call");
    assert_eq!(error_reason(&status), Some(ErrorReason::RequestIdReused));
    client.release(&held).await.expect("the holder");
    for name in ["a", "b", "c"] {
        client
            .acquire(&exclusive_call(name))
            .await
            .expect("it is free");
    }
}

#[tokio::test]
async fn t26_one_that_is_held_refuses_all_and_leaves_nothing() {
    let (_deployment, client) = start_deployment().await;
    client
        .acquire(&exclusive_call("b"))
        .await
        .expect("it is free");
    let wanted = names(&["c", "b", "a"]);
    let status = client.acquire_all(&wanted, &exclusive_call("")).await;
    let status = status.expect_err("one is held");
    assert_eq!(error_reason(&status), Some(ErrorReason::LockHeld));
    assert!(status.message().contains("default/b"), "{status:?}");
    for name in ["a", "c"] {
        let free = client.get_lock(name).await.expect("GetLock works");
        assert_eq!(free, None, "it was rolled back");
    }
    let waits = AcquireCall::new("", Duration::from_secs(60), Duration::from_millis(200));
    let status = client.acquire_all(&wanted, &waits).await;
    let status = status.expect_err("one is held");
    assert_eq!(error_reason(&status), Some(ErrorReason::WaitTimeout));
    let held = client.get_lock("b").await.expect("GetLock works");
    assert_eq!(held.expect("it is held").queue_length, 0);
    let free = client.get_lock("a").await.expect("GetLock works");
    assert_eq!(free, None, "it was rolled back");
}

#[tokio::test]
async fn a_unary_call_waits_no_longer_than_its_ttl() {
    let (_deployment, client) = start_deployment().await;
    client
        .acquire(&exclusive_call("b"))
        .await
        .expect("it is free");
    let waits = AcquireCall::new("", TTL, Duration::from_secs(3_600));
    let started_at = boottime();
    let status = client.acquire_all_at(0, &names(&["a", "b"]), &waits).await;
    let waited = boottime() - started_at;
    assert_eq!(
        error_reason(&status.expect_err("one is held")),
        Some(ErrorReason::WaitTimeout)
    );
    assert!(waited >= TTL && waited < 2 * TTL, "{waited:?}");
}

#[tokio::test]
async fn a_caller_that_is_gone_leaves_nothing() {
    let (_deployment, client) = start_deployment().await;
    let b = client
        .acquire(&exclusive_call("b"))
        .await
        .expect("it is free");
    let waits = AcquireCall::new("", Duration::from_secs(60), Duration::from_secs(60));
    let (caller, wanted) = (client.clone(), names(&["a", "b"]));
    let gone = tokio::spawn(async move { caller.acquire_all_at(0, &wanted, &waits).await });
    client.wait_for_queue_length_at(0, "b", 1).await;
    let a = client.get_lock("a").await.expect("GetLock works");
    assert_eq!(a.expect("it is taken").holders.len(), 1);
    gone.abort();
    client.wait_for_queue_length_at(0, "b", 0).await;
    let patient = AcquireCall::new("a", TTL, Duration::from_secs(10));
    client.acquire(&patient).await.expect("released");
    client.release(&b).await.expect("the holder");
    client
        .acquire(&exclusive_call("b"))
        .await
        .expect("it is free");
}

#[tokio::test]
async fn each_lock_is_taken_in_its_own_mode() {
    let deployment = Deployment::start(1).await;
    let mut locks = LockServiceClient::new(channel(deployment.addrs()[0]));
    let target = |name: &str, mode: LockMode, permits, limit| LockTarget {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        mode: mode.into(),
        permits,
        limit,
    };
    let all = |targets: &[LockTarget]| AcquireAllRequest {
        targets: targets.to_vec(),
        owner: Some(Owner {
            id: "worker-1".to_owned(),
            ..Owner::default()
        }),
        ..AcquireAllRequest::default()
    };
    let mixed = [
        target("write", LockMode::Exclusive, 0, 0),
        target("read", LockMode::Shared, 0, 0),
        target("pool", LockMode::Semaphore, 2, 3),
    ];
    let lease = locks.acquire_all(all(&mixed)).await.expect("all are free");
    let lease = lease.into_inner().lease.expect("OK means held");
    let grants = lease.grants.iter();
    let granted = grants.map(|grant| grant.target.clone().expect("a target"));
    assert_eq!(granted.collect::<Vec<_>>(), mixed);
    let beside = [
        target("read", LockMode::Shared, 0, 0),
        target("pool", LockMode::Semaphore, 1, 0),
    ];
    let second = locks
        .acquire_all(all(&beside))
        .await
        .expect("there is room");
    let second = second.into_inner().lease.expect("OK means held");
    let pool = second.grants[1].target.clone().expect("a target");
    assert_eq!((pool.permits, pool.limit), (1, 3));
    let other = [
        target("another", LockMode::Exclusive, 0, 0),
        target("pool", LockMode::Semaphore, 1, 4),
    ];
    let status = locks.acquire_all(all(&other)).await.expect_err("3 permits");
    assert_eq!(error_reason(&status), Some(ErrorReason::LimitMismatch));
    let client = Client::new("observer", &deployment.addrs(), 0);
    let free = client.get_lock("another").await.expect("GetLock works");
    assert_eq!(free, None, "it was rolled back");
}

/// A drain rolls nothing back. The call continues at another broker with its grants and queue
/// positions.
#[tokio::test]
async fn a_call_at_a_draining_broker_goes_on_at_another() {
    let deployment = Deployment::start(2).await;
    let client = Client::new("worker-1", &deployment.addrs(), 1);
    let b = client
        .acquire(&exclusive_call("b"))
        .await
        .expect("it is free");
    let waits = AcquireCall::new("", Duration::from_secs(60), Duration::from_secs(60));
    let open_at = |at| {
        let (caller, wanted, waits) = (client.clone(), names(&["a", "b"]), waits.clone());
        tokio::spawn(async move { caller.acquire_all_at(at, &wanted, &waits).await })
    };
    let first = open_at(0);
    client.wait_for_queue_length_at(1, "b", 1).await;
    deployment.brokers[0].terminate();
    let status = first.await.expect("no panic").expect_err("it drains");
    assert_eq!(error_reason(&status), Some(ErrorReason::Draining));
    let held = client.get_lock_at(1, "a").await.expect("it is held");
    let second = open_at(1);
    client.wait_for_queue_length_at(1, "b", 1).await;
    client.release(&b).await.expect("the holder");
    let both = second.await.expect("no panic").expect("both are free");
    let token = both.lease.grants[0].fencing_token;
    assert_eq!(token, held.holders[0].fencing_token, "it was kept");
}

/// AcquireAll is atomic: the locks that were granted first are renewed after the last grant.
#[tokio::test]
async fn a_lock_that_is_lost_meanwhile_fails_the_whole_call() {
    let (deployment, client) = start_deployment().await;
    let b = client
        .acquire(&exclusive_call("b"))
        .await
        .expect("it is free");
    let waits = AcquireCall::new("", Duration::from_secs(60), Duration::from_secs(60));
    let (caller, wanted) = (client.clone(), names(&["a", "b"]));
    let call = tokio::spawn(async move { caller.acquire_all_at(0, &wanted, &waits).await });
    client.wait_for_queue_length_at(0, "b", 1).await;
    let record = format!("{KEY_PREFIX}{{default:a}}");
    let mut redis = deployment.redis.connect().await;
    assert_eq!(redis.must(&["DEL", &record]).await.integer(), 1);
    client.release(&b).await.expect("the holder");
    let status = call.await.expect("no panic").expect_err("a is lost");
    assert_eq!(error_reason(&status), Some(ErrorReason::LeaseNotFound));
    let free = client.get_lock("b").await.expect("GetLock works");
    assert_eq!(free, None, "it was rolled back");
}

#[tokio::test]
async fn illegal_targets_are_named() {
    let (_deployment, client) = start_deployment().await;
    let many: Vec<_> = (0..17).map(lock_name).collect();
    for (wanted, output) in [
        (names(&["a"]), "targets must be 2 to 16"),
        (many, "targets must be 2 to 16"),
        (
            names(&["a", "b", "a"]),
            "targets[2] must not name a lock twice",
        ),
        (names(&["a", ""]), "targets[1].name must not be empty"),
    ] {
        let status = client.acquire_all(&wanted, &exclusive_call("")).await;
        let status = status.expect_err("illegal");
        assert_eq!(error_reason(&status), Some(ErrorReason::InvalidField));
        assert!(status.message().contains(output), "{}", status.message());
    }
}
