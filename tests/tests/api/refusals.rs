//! Every rejection over gRPC: code, reason, and retry delay.

use std::time::Duration;

use leasehold_proto::v1::{
    AcquireRequest, CheckFencingTokenRequest, ErrorReason, Grant, Lease, LockRef, LockTarget,
    Owner, RenewRequest, lock_service_client::LockServiceClient,
};
use leasehold_tests::{
    broker::{
        deployment::Deployment,
        in_process::InProcessBroker,
        process::{BrokerOptions, BrokerProcess},
    },
    client::unary::{AcquireCall, Client},
    redis::server::RedisServer,
    status::error_reason,
};
use tonic::{Code, Status, transport::Endpoint};
use tonic_types::StatusExt as _;

pub(crate) const LOCK: &str = "a-lock";
const TTL: Duration = Duration::from_secs(30);
const WAIT: Duration = Duration::from_secs(60);

pub(crate) fn immediate_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

pub(crate) fn waiting_call() -> AcquireCall {
    AcquireCall::new(LOCK, TTL, WAIT)
}

/// Returns the machine-readable part of a status: code, reason, retry delay.
fn read(status: &Status) -> (Code, Option<ErrorReason>, Option<Duration>) {
    let retry = status.get_details_retry_info();
    let retry = retry.map(|info| info.retry_delay.expect("a delay"));
    (status.code(), error_reason(status), retry)
}

pub(crate) fn refused<T>(
    answer: Result<T, Status>,
) -> (Code, Option<ErrorReason>, Option<Duration>) {
    read(&answer.err().expect("a refusal"))
}

pub(crate) fn check(name: &str, fencing_token: i64) -> CheckFencingTokenRequest {
    CheckFencingTokenRequest {
        lock: Some(LockRef {
            name: name.to_owned(),
            ..LockRef::default()
        }),
        fencing_token,
    }
}

#[tokio::test]
async fn the_cause_of_a_lease_end_is_reported() {
    let broker = InProcessBroker::start().await;
    let client = Client::new("worker-1", &[broker.api], 0);
    let ended = client
        .acquire_at(0, &immediate_call(LOCK))
        .await
        .expect("it is free");
    client.release_at(0, &ended).await.expect("the holder");
    let expired = (Code::Aborted, Some(ErrorReason::LeaseExpired), None);
    assert_eq!(refused(client.renew_at(0, &ended).await), expired);

    let held = client
        .acquire_at(0, &immediate_call(LOCK))
        .await
        .expect("it is free");
    let mut unknown = held.clone();
    unknown.lease.grants[0].fencing_token += 1;
    let not_found = (Code::NotFound, Some(ErrorReason::LeaseNotFound), None);
    assert_eq!(refused(client.renew_at(0, &unknown).await), not_found);
    assert_eq!(refused(client.release_at(0, &unknown).await), not_found);

    let mut locks = LockServiceClient::new(broker.channel());
    let live = locks.check_fencing_token(check(LOCK, held.token())).await;
    assert!(
        live.expect("the newest token")
            .get_ref()
            .remaining
            .is_some()
    );
    let nobody = check("nobody-s", held.token());
    assert_eq!(refused(locks.check_fencing_token(nobody).await), not_found);
    let stale = locks.check_fencing_token(check(LOCK, ended.token())).await;
    let stale = stale.expect_err("a later grant was made");
    let aborted = (Code::Aborted, Some(ErrorReason::StaleToken), None);
    assert_eq!(read(&stale), aborted);
    let metadata = stale
        .get_details_error_info()
        .expect("an ErrorInfo")
        .metadata;
    assert_eq!(metadata["newest_fencing_token"], held.token().to_string());
    broker.stop().await;
}

#[tokio::test]
async fn the_queue_is_full_at_ten_thousand() {
    const FULL: usize = 10_000;
    /// Maximum number of waiting calls on a connection, three quarters of its streams.
    const ON_ONE_CONNECTION: usize = 750;
    const CONNECTIONS: usize = FULL.div_ceil(ON_ONE_CONNECTION);
    let broker = InProcessBroker::start().await;
    let endpoints = vec![broker.api; CONNECTIONS + 1];
    let client = Client::new("worker-1", &endpoints, 0);
    let held = client
        .acquire_at(CONNECTIONS, &immediate_call(LOCK))
        .await
        .expect("it is free");
    let mut line = Vec::new();
    for connection in 0..CONNECTIONS {
        let more = ON_ONE_CONNECTION.min(FULL - line.len());
        line.extend((0..more).map(|_| client.start_acquire_at(connection, &waiting_call())));
        // If all calls were opened at once, the last connections would not open in time and their
        // calls would fail.
        client
            .wait_for_queue_length_at(CONNECTIONS, LOCK, line.len())
            .await;
    }
    let surplus = waiting_call();
    let surplus = client.acquire_at(CONNECTIONS, &surplus).await;
    let full = (Code::ResourceExhausted, Some(ErrorReason::QueueFull), None);
    assert_eq!(refused(surplus), full);
    let (code, reason, retry) =
        refused(client.acquire_at(CONNECTIONS, &immediate_call(LOCK)).await);
    assert_eq!((code, reason), (Code::Aborted, Some(ErrorReason::LockHeld)));
    assert!(retry.is_some_and(|after| after <= 2 * TTL), "{retry:?}");
    drop(line);
    client.wait_for_queue_length_at(CONNECTIONS, LOCK, 0).await;
    client
        .release_at(CONNECTIONS, &held)
        .await
        .expect("the holder");
    broker.stop().await;
}

#[tokio::test]
async fn a_drained_call_keeps_its_queue_position_at_another_broker() {
    let mut deployment = Deployment::start(2).await;
    let client = Client::new("worker-1", &deployment.addrs(), 0);
    let held = client
        .acquire_at(1, &immediate_call(LOCK))
        .await
        .expect("it is free");
    let call = waiting_call();
    let drained = client.start_acquire_at(0, &call);
    client.wait_for_queue_length_at(1, LOCK, 1).await;
    let later = client.start_acquire_at(1, &waiting_call());
    client.wait_for_queue_length_at(1, LOCK, 2).await;
    deployment.brokers[0].terminate();
    let draining = (
        Code::Unavailable,
        Some(ErrorReason::Draining),
        Some(Duration::ZERO),
    );
    assert_eq!(refused(drained.await.expect("no panic")), draining);
    assert_eq!(deployment.brokers[0].wait_for_exit().await, Some(0));
    client.wait_for_queue_length_at(1, LOCK, 2).await;
    let again = client.start_acquire_at(1, &call);
    client.release_at(1, &held).await.expect("the holder");
    let first = again.await.expect("no panic").expect("its turn");
    assert!(!later.is_finished(), "the later call waits behind it");
    client.release_at(1, &first).await.expect("the holder");
    let second = later.await.expect("no panic").expect("its turn");
    assert!(first.token() < second.token());
}

#[tokio::test]
async fn a_recovering_store_returns_a_retry_delay() {
    let redis = RedisServer::start().await;
    let broker = BrokerProcess::start(&BrokerOptions::for_store(redis.url())).await;
    let client = Client::new("worker-1", &[broker.addr()], 0);
    let refusals = [
        client.acquire(&immediate_call(LOCK)).await,
        client.acquire_at(0, &waiting_call()).await,
    ];
    for refusal in refusals {
        let (code, reason, retry) = refused(refusal);
        let recovering = (Code::Unavailable, Some(ErrorReason::StoreRecovering));
        assert_eq!((code, reason), recovering);
        let after = retry.expect("when to come again");
        assert!(after > TTL && after < 3 * WAIT, "{after:?}");
    }
}

/// Default limit of gRPC clients for response metadata: the limit of Java, and the soft limit of C,
/// Python and Ruby, above which they warn.
const METADATA_READ_BYTES: u32 = 8 * 1_024;

#[tokio::test]
async fn the_longest_refusals_are_read_by_every_client() {
    let broker = InProcessBroker::start().await;
    let endpoint = Endpoint::from_shared(format!("http://{}", broker.api));
    let endpoint = endpoint.expect("a socket address");
    let channel = endpoint.http2_max_header_list_size(METADATA_READ_BYTES);
    let mut locks = LockServiceClient::new(channel.connect_lazy());
    let wrong_target = LockTarget {
        namespace: "?".to_owned(),
        permits: -1,
        limit: -1,
        ..LockTarget::default()
    };
    let wrong_lease = Lease {
        grants: vec![
            Grant {
                target: Some(wrong_target.clone()),
                ..Grant::default()
            };
            64
        ],
        ..Lease::default()
    };
    let renew = RenewRequest {
        lease: Some(wrong_lease.clone()),
        ttl: None,
    };
    let labels = (0..16).map(|n| {
        let key = format!("{n}{}", "\u{7f}".repeat(64));
        (key, String::new())
    });
    let acquire = AcquireRequest {
        target: Some(wrong_target),
        owner: Some(Owner {
            labels: labels.collect(),
            ..Owner::default()
        }),
        under: Some(wrong_lease),
        ..AcquireRequest::default()
    };
    let refusals = [
        locks.renew(renew).await.err(),
        locks.acquire(acquire).await.err(),
    ];
    for refused in refusals {
        let refused = refused.expect("many fields are wrong");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
        let bad_request = refused.get_details_bad_request().expect("a BadRequest");
        assert_eq!(bad_request.field_violations.len(), 8);
        let details = refused.details().len();
        assert!(details < 4_096, "{details} bytes");
    }
    broker.stop().await;
}
