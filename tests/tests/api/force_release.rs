//! ForceReleaseLease as operators, holders and waiters see it.

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
    client::{AcquireCall, Client},
    clock::boottime,
    in_process::InProcess,
    operator::{WHY, force, request, unsafely},
    status::reason,
    stream_client::StreamClient,
    time_left::expiry,
    until::until,
};
use tokio::time::{sleep, timeout};
use tonic::Code;

const TTL: Duration = Duration::from_secs(4);
const WAIT: Duration = Duration::from_secs(30);
/// How soon a holder that can be reached hears of it.
const HEARD_WITHIN: Duration = Duration::from_millis(500);
/// A stream takes 20 heartbeats a second.
const BEAT: Duration = Duration::from_millis(60);
const LOCK: &str = "a";

fn now(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

fn seconds(seconds: u64) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(seconds).expect("few"),
        nanos: 0,
    }
}

#[tokio::test]
async fn a_holder_is_asked_first_and_told_the_reason() {
    let broker = InProcess::start().await;
    let mut stream = StreamClient::open(broker.api).await;
    let call = stream.acquire(&now(LOCK), 1).await;
    let lease = stream.granted(call).await;
    let asked = ForceReleaseLeaseRequest {
        grace: Some(seconds(2)),
        ..request(LOCK, &lease.lease_id)
    };
    force(broker.admin, asked).await.expect("it is held");
    let told = stream.heard(|message| match message {
        Response::ReleaseRequested(told) => Some(told),
        _ => None,
    });
    let told = told.await;
    assert_eq!(told.lease_id, lease.lease_id);
    assert_eq!(told.grace, Some(seconds(2)));
    assert!(told.message.contains(WHY), "{}", told.message);
    let sequence = stream.heartbeat().await;
    let ack = stream.heard(|message| match message {
        Response::Ack(ack) if ack.sequence == sequence => Some(ack),
        _ => None,
    });
    let ttl = ack.await.leases[0].ttl.expect("a validity");
    let ttl = Duration::try_from(ttl).expect("positive");
    assert!(ttl <= Duration::from_secs(2), "cut: {ttl:?}");
    let ended = async || {
        sleep(BEAT).await;
        stream.heartbeat().await;
        let heard = stream.heard(|message| match message {
            Response::Ended(ended) => Some(Some(ended)),
            Response::Ack(_) => Some(None),
            Response::ReleaseRequested(again) => panic!("told twice: {again:?}"),
            _ => None,
        });
        heard.await
    };
    let mut ended = ended;
    let ended = until("the end of its grace", async || ended().await).await;
    assert_eq!(ended.reason(), LeaseEndReason::Revoked);
    assert!(ended.message.contains(WHY), "{}", ended.message);
    drop(stream);
    broker.stop().await;
}

#[tokio::test]
async fn a_holder_without_a_stream_is_told_when_it_renews() {
    let broker = InProcess::start().await;
    let client = Client::new("job", &[broker.api], 0);
    let held = client.acquire_at(0, &now(LOCK)).await.expect("it is free");
    let call = request(LOCK, &held.lease.lease_id);
    let taken = force(broker.admin, call).await.expect("it is held");
    let owner = taken.holder.and_then(|holder| holder.owner);
    assert_eq!(owner.expect("an owner").id, "job");
    // A lease that is revoked in the millisecond of its grant is over in the next.
    let refused = until("a refusal", async || client.renew_at(0, &held).await.err()).await;
    assert_eq!(refused.code(), Code::Aborted);
    assert_eq!(reason(&refused), Some(ErrorReason::LeaseRevoked));
    assert!(refused.message().contains(WHY), "{}", refused.message());
    let next = client.acquire_at(0, &now(LOCK)).await;
    assert_eq!(
        reason(&next.expect_err("still held")),
        Some(ErrorReason::LockHeld)
    );
    client.release_at(0, &held).await.expect("given back");
    let next = client.acquire_at(0, &now(LOCK)).await;
    assert!(next.expect("free at once").token() > held.token());
    broker.stop().await;
}

#[tokio::test]
async fn what_is_only_asked_for_is_not_done_and_a_repeat_is_safe() {
    let broker = InProcess::start().await;
    let client = Client::new("job", &[broker.api], 0);
    let held = client.acquire_at(0, &now(LOCK)).await.expect("it is free");
    let lease_id = &held.lease.lease_id;
    let look = ForceReleaseLeaseRequest {
        validate_only: true,
        ..unsafely(LOCK, lease_id)
    };
    let would = force(broker.admin, look).await.expect("it is held");
    assert_eq!(would.holder.expect("a holder").fencing_token, held.token());
    client.renew_at(0, &held).await.expect("nothing was done");
    force(broker.admin, unsafely(LOCK, lease_id))
        .await
        .expect("done");
    let again = force(broker.admin, unsafely(LOCK, lease_id))
        .await
        .expect("done before");
    let gone = again.holder.expect("named");
    assert_eq!(
        (gone.lease_id.as_str(), gone.fencing_token),
        (lease_id.as_str(), 0)
    );
    let next = client.acquire_at(0, &now(LOCK)).await.expect("free now");
    force(broker.admin, unsafely(LOCK, lease_id))
        .await
        .expect("done before");
    client
        .renew_at(0, &next)
        .await
        .expect("another lease is not hit");
    broker.stop().await;
}

#[tokio::test]
async fn what_cannot_be_taken_away_says_why() {
    let broker = InProcess::start().await;
    let client = Client::new("job", &[broker.api], 0);
    let held = client.acquire_at(0, &now(LOCK)).await.expect("it is free");
    let lease_id = held.lease.lease_id.clone();
    client.release_at(0, &held).await.expect("the holder");
    let released = force(broker.admin, request(LOCK, &lease_id))
        .await
        .expect_err("over");
    assert_eq!(reason(&released), Some(ErrorReason::LeaseExpired));
    assert!(
        released.message().contains("was given back"),
        "{}",
        released.message()
    );
    let elsewhere = ForceReleaseLeaseRequest {
        lock: Some(LockRef {
            namespace: String::new(),
            name: "another".to_owned(),
        }),
        ..request(LOCK, &lease_id)
    };
    let unknown = force(broker.admin, elsewhere).await.expect_err("not there");
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
    let illegal = force(broker.admin, illegal).await.expect_err("all wrong");
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
    let broker = InProcess::start().await;
    let mut stream = StreamClient::open(broker.api).await;
    let call = stream.acquire_all(&[LOCK, "b"], &now(LOCK)).await;
    let lease = stream.granted(call).await;
    force(broker.admin, request(LOCK, &lease.lease_id))
        .await
        .expect("it is held");
    let told = stream.heard(ended).await;
    assert_eq!(told.reason(), LeaseEndReason::Revoked);
    let client = Client::new("next", &[broker.api], 0);
    let other = AcquireCall::new("b", TTL, WAIT);
    let asked = boottime();
    client.acquire_at(0, &other).await.expect("its turn");
    assert!(boottime() - asked <= expiry(TTL) + HEARD_WITHIN);
    drop(stream);
    broker.stop().await;
}

#[tokio::test]
async fn one_that_is_taken_as_soon_as_it_is_granted_is_told() {
    let broker = InProcess::start().await;
    let mut stream = StreamClient::open(broker.api).await;
    for round in 0..100 {
        let lock = format!("lock {round}");
        let call = stream.acquire(&now(&lock), 1).await;
        let lease = stream.granted(call).await;
        force(broker.admin, request(&lock, &lease.lease_id))
            .await
            .expect("it is held");
        let told = timeout(TTL, stream.heard(ended)).await;
        let told = told.unwrap_or_else(|_| panic!("{lock}: nothing is told"));
        assert_eq!(told.reason(), LeaseEndReason::Revoked);
    }
    drop(stream);
    broker.stop().await;
}

fn ended(message: Response) -> Option<LeaseEnded> {
    match message {
        Response::Ended(ended) => Some(ended),
        _ => None,
    }
}
