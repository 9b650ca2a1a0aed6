//! ForceReleaseLease from the view of operators, holders and waiters.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test names the messages that it waits for"
)]

use std::time::Duration;

use leasehold_proto::v1::{
    ErrorReason, ForceReleaseLeaseRequest, LeaseEndReason, LeaseEnded, LockRef,
    hold_response::Message as Response,
};
use leasehold_tests::{
    broker::in_process::InProcessBroker,
    client::{
        operator::{REASON, force_release, force_release_request, unsafe_force_release_request},
        stream::StreamClient,
        unary::{AcquireCall, Client},
    },
    clock::boottime,
    load::store_expiry::store_expiry,
    status::error_reason,
    until::until,
};
use tokio::time::{sleep, timeout};
use tonic::Code;

const TTL: Duration = Duration::from_secs(4);
const WAIT: Duration = Duration::from_secs(30);
/// Time within which a connected holder receives the revocation.
const NOTIFIED_WITHIN: Duration = Duration::from_millis(500);
/// Heartbeat interval, within the limit of 20 heartbeats per second on a stream.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(60);
const LOCK: &str = "a";

fn immediate_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

fn seconds(seconds: u64) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(seconds).expect("few"),
        nanos: 0,
    }
}

#[tokio::test]
async fn a_holder_is_asked_to_release_first_and_receives_the_reason() {
    let broker = InProcessBroker::start().await;
    let mut stream = StreamClient::open(broker.api).await;
    let call = stream.acquire(&immediate_call(LOCK), 1).await;
    let lease = stream.expect_granted(call).await;
    let asked = ForceReleaseLeaseRequest {
        grace: Some(seconds(2)),
        ..force_release_request(LOCK, &lease.lease_id)
    };
    force_release(broker.admin, asked)
        .await
        .expect("it is held");
    let notice = stream.wait_for(|message| match message {
        Response::ReleaseRequested(notice) => Some(notice),
        _ => None,
    });
    let notice = notice.await;
    assert_eq!(notice.lease_id, lease.lease_id);
    assert_eq!(notice.grace, Some(seconds(2)));
    assert!(notice.message.contains(REASON), "{}", notice.message);
    let sequence = stream.heartbeat().await;
    let ack = stream.wait_for(|message| match message {
        Response::Ack(ack) if ack.sequence == sequence => Some(ack),
        _ => None,
    });
    let ttl = ack.await.leases[0].ttl.expect("a validity");
    let ttl = Duration::try_from(ttl).expect("positive");
    assert!(ttl <= Duration::from_secs(2), "cut: {ttl:?}");
    let ended = async || {
        sleep(HEARTBEAT_INTERVAL).await;
        stream.heartbeat().await;
        let ended_lease = stream.wait_for(|message| match message {
            Response::Ended(ended) => Some(Some(ended)),
            Response::Ack(_) => Some(None),
            Response::ReleaseRequested(again) => panic!("notified twice: {again:?}"),
            _ => None,
        });
        ended_lease.await
    };
    let mut ended = ended;
    let ended = until("the end of its grace", async || ended().await).await;
    assert_eq!(ended.reason(), LeaseEndReason::Revoked);
    assert!(ended.message.contains(REASON), "{}", ended.message);
    drop(stream);
    broker.stop().await;
}

#[tokio::test]
async fn a_holder_without_a_stream_is_notified_when_it_renews() {
    let broker = InProcessBroker::start().await;
    let client = Client::new("job", &[broker.api], 0);
    let held = client
        .acquire_at(0, &immediate_call(LOCK))
        .await
        .expect("it is free");
    let call = force_release_request(LOCK, &held.lease.lease_id);
    let taken = force_release(broker.admin, call).await.expect("it is held");
    let owner = taken.holder.and_then(|holder| holder.owner);
    assert_eq!(owner.expect("an owner").id, "job");
    // A lease that is revoked in the millisecond of its grant ends in the next millisecond.
    let refused = until("a refusal", async || client.renew_at(0, &held).await.err()).await;
    assert_eq!(refused.code(), Code::Aborted);
    assert_eq!(error_reason(&refused), Some(ErrorReason::LeaseRevoked));
    assert!(refused.message().contains(REASON), "{}", refused.message());
    let next = client.acquire_at(0, &immediate_call(LOCK)).await;
    assert_eq!(
        error_reason(&next.expect_err("still held")),
        Some(ErrorReason::LockHeld)
    );
    client.release_at(0, &held).await.expect("released");
    let next = client.acquire_at(0, &immediate_call(LOCK)).await;
    assert!(next.expect("free at once").token() > held.token());
    broker.stop().await;
}

#[tokio::test]
async fn a_dry_run_changes_nothing_and_a_repeat_is_safe() {
    let broker = InProcessBroker::start().await;
    let client = Client::new("job", &[broker.api], 0);
    let held = client
        .acquire_at(0, &immediate_call(LOCK))
        .await
        .expect("it is free");
    let lease_id = &held.lease.lease_id;
    let look = ForceReleaseLeaseRequest {
        validate_only: true,
        ..unsafe_force_release_request(LOCK, lease_id)
    };
    let would = force_release(broker.admin, look).await.expect("it is held");
    assert_eq!(would.holder.expect("a holder").fencing_token, held.token());
    client.renew_at(0, &held).await.expect("nothing was done");
    force_release(broker.admin, unsafe_force_release_request(LOCK, lease_id))
        .await
        .expect("done");
    let again = force_release(broker.admin, unsafe_force_release_request(LOCK, lease_id))
        .await
        .expect("done before");
    let gone = again.holder.expect("named");
    assert_eq!(
        (gone.lease_id.as_str(), gone.fencing_token),
        (lease_id.as_str(), 0)
    );
    let next = client
        .acquire_at(0, &immediate_call(LOCK))
        .await
        .expect("free now");
    force_release(broker.admin, unsafe_force_release_request(LOCK, lease_id))
        .await
        .expect("done before");
    client
        .renew_at(0, &next)
        .await
        .expect("another lease is not hit");
    broker.stop().await;
}

#[tokio::test]
async fn a_rejected_force_release_names_its_reason() {
    let broker = InProcessBroker::start().await;
    let client = Client::new("job", &[broker.api], 0);
    let held = client
        .acquire_at(0, &immediate_call(LOCK))
        .await
        .expect("it is free");
    let lease_id = held.lease.lease_id.clone();
    client.release_at(0, &held).await.expect("the holder");
    let released = force_release(broker.admin, force_release_request(LOCK, &lease_id))
        .await
        .expect_err("over");
    assert_eq!(error_reason(&released), Some(ErrorReason::LeaseExpired));
    assert!(
        released.message().contains("was already released"),
        "{}",
        released.message()
    );
    let elsewhere = ForceReleaseLeaseRequest {
        lock: Some(LockRef {
            namespace: String::new(),
            name: "another".to_owned(),
        }),
        ..force_release_request(LOCK, &lease_id)
    };
    let unknown = force_release(broker.admin, elsewhere)
        .await
        .expect_err("not there");
    assert_eq!(unknown.code(), Code::NotFound);
    assert!(
        unknown.message().contains("does not hold"),
        "{}",
        unknown.message()
    );
    let illegal = ForceReleaseLeaseRequest {
        lease_id: "x".to_owned(),
        reason: String::new(),
        lock: None,
        grace: Some(seconds(1)),
        lock_delay: Some(seconds(61)),
        request_id: "1".to_owned(),
        unsafe_now: true,
        validate_only: false,
    };
    let illegal = force_release(broker.admin, illegal)
        .await
        .expect_err("all wrong");
    assert_eq!(illegal.code(), Code::InvalidArgument);
    for field in ["lock", "lease_id", "reason", "and 3 more"] {
        assert!(
            illegal.message().contains(field),
            "{field}: {}",
            illegal.message()
        );
    }
    broker.stop().await;
}

#[tokio::test]
async fn the_other_locks_of_the_lease_are_renewed_no_more() {
    let broker = InProcessBroker::start().await;
    let mut stream = StreamClient::open(broker.api).await;
    let call = stream
        .acquire_all(&[LOCK, "b"], &immediate_call(LOCK))
        .await;
    let lease = stream.expect_granted(call).await;
    force_release(broker.admin, force_release_request(LOCK, &lease.lease_id))
        .await
        .expect("it is held");
    let notice = stream.wait_for(lease_ended).await;
    assert_eq!(notice.reason(), LeaseEndReason::Revoked);
    let client = Client::new("next", &[broker.api], 0);
    let other = AcquireCall::new("b", TTL, WAIT);
    let asked = boottime();
    client.acquire_at(0, &other).await.expect("its turn");
    assert!(boottime() - asked <= store_expiry(TTL) + NOTIFIED_WITHIN);
    drop(stream);
    broker.stop().await;
}

#[tokio::test]
async fn a_lease_revoked_directly_after_its_grant_is_reported() {
    let broker = InProcessBroker::start().await;
    let mut stream = StreamClient::open(broker.api).await;
    for round in 0..100 {
        let lock = format!("lock {round}");
        let call = stream.acquire(&immediate_call(&lock), 1).await;
        let lease = stream.expect_granted(call).await;
        force_release(broker.admin, force_release_request(&lock, &lease.lease_id))
            .await
            .expect("it is held");
        let notice = timeout(TTL, stream.wait_for(lease_ended)).await;
        let notice = notice.unwrap_or_else(|_| panic!("{lock}: no notification"));
        assert_eq!(notice.reason(), LeaseEndReason::Revoked);
    }
    drop(stream);
    broker.stop().await;
}

fn lease_ended(message: Response) -> Option<LeaseEnded> {
    match message {
        Response::Ended(ended) => Some(ended),
        _ => None,
    }
}
