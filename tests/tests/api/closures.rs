//! Closed locks from the view of operators, callers and waiters.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test names the messages that it waits for"
)]

use std::time::{Duration, SystemTime};

use leasehold_proto::v1::{
    self as pb, AcquireRequest, CloseLockRequest, ClosureCause, Contention, ErrorReason,
    GetLockRequest, ListLocksRequest, LockRef, LockTarget, OpenLockRequest, Owner, ReleaseRequest,
    WatchLocksRequest, admin_service_client::AdminServiceClient, close_lock_request::End,
    hold_response::Message as Response, inspection_service_client::InspectionServiceClient, lock,
    lock_service_client::LockServiceClient, watch_locks_response::EventType,
};
use leasehold_tests::{
    broker::in_process::InProcessBroker,
    client::{
        stream::StreamClient,
        unary::{AcquireCall, channel},
    },
    status::error_reason,
};
use prost::Message as _;
use tonic::{Code, Status, transport::Channel};

const LOCK: &str = "a";
const REASON: &str = "a freeze";
const WAIT: Duration = Duration::from_secs(30);

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

fn lock_ref() -> Option<LockRef> {
    Some(LockRef {
        name: LOCK.to_owned(),
        ..LockRef::default()
    })
}

fn close_request(end: Option<End>) -> CloseLockRequest {
    CloseLockRequest {
        lock: lock_ref(),
        reason: REASON.to_owned(),
        end,
        operator: "alice".to_owned(),
    }
}

fn for_an_hour() -> CloseLockRequest {
    close_request(seconds(3_600).map(End::Duration))
}

fn acquire_request() -> AcquireRequest {
    AcquireRequest {
        target: Some(LockTarget {
            name: LOCK.to_owned(),
            ..LockTarget::default()
        }),
        owner: Some(Owner {
            id: "job".to_owned(),
            reason: "nightly".to_owned(),
            ..Owner::default()
        }),
        ..AcquireRequest::default()
    }
}

/// Returns the closure in the details of a rejection.
fn closure_of(status: &Status) -> pb::Closure {
    let details = tonic_types::pb::Status::decode(status.details()).expect("details");
    let mut details = details.details.iter();
    let found = details.find(|detail| detail.type_url.ends_with("/leasehold.v1.Contention"));
    let contention = Contention::decode(&*found.expect("contention").value).expect("contention");
    contention.closure.expect("a closure")
}

fn assert_closed_by(closure: &pb::Closure, cause: ClosureCause, owner: &str, reason: &str) {
    let by = closure.owner.clone().expect("an owner");
    assert_eq!(closure.cause(), cause);
    assert_eq!((by.id.as_str(), by.reason.as_str()), (owner, reason));
    let remaining = closure.remaining.expect("a time").seconds;
    assert!((3_590..=3_600).contains(&remaining), "{remaining}");
    let until = closure.until_time.expect("a time");
    let until = SystemTime::try_from(until).expect("a time");
    let left = until.duration_since(SystemTime::now()).expect("ahead");
    assert!(left.as_secs().abs_diff(3_600) <= 10, "{left:?}");
}

async fn close(
    admin: &mut AdminServiceClient<Channel>,
    request: CloseLockRequest,
) -> Result<pb::Closure, Status> {
    let closed = admin.close_lock(request).await?.into_inner();
    Ok(closed.closure.expect("a closure"))
}

#[tokio::test]
async fn everybody_learns_until_when_by_whom_and_why_a_lock_is_closed() {
    let broker = InProcessBroker::start().await;
    let mut admin = AdminServiceClient::new(channel(broker.admin));
    let mut locks = LockServiceClient::new(broker.channel());
    let mut inspection = InspectionServiceClient::new(broker.channel());
    let watch = inspection.watch_locks(WatchLocksRequest::default()).await;
    let mut watch = watch.expect("accepted").into_inner();
    let by = |closure: &pb::Closure| {
        assert_closed_by(closure, ClosureCause::Operator, "alice", REASON);
    };
    by(&close(&mut admin, for_an_hour()).await.expect("closed"));
    let rejected = locks.acquire(acquire_request()).await;
    let rejected = rejected.expect_err("it is closed");
    assert_eq!(error_reason(&rejected), Some(ErrorReason::LockHeld));
    let message = rejected.message();
    assert!(
        message.contains("closed by an operator for another "),
        "{message}"
    );
    by(&closure_of(&rejected));
    let get = GetLockRequest {
        name: LOCK.to_owned(),
        ..GetLockRequest::default()
    };
    let state = inspection
        .get_lock(get.clone())
        .await
        .expect("it is closed");
    let listed = inspection.list_locks(ListLocksRequest::default()).await;
    let mut listed = listed.expect("a list").into_inner().locks;
    listed.extend(state.into_inner().lock);
    assert_eq!(listed.len(), 2);
    for shown in listed {
        assert_eq!(shown.state(), lock::State::Closed);
        by(&shown.closure.expect("a closure"));
    }
    let opened = admin.open_lock(OpenLockRequest { lock: lock_ref() }).await;
    by(&opened
        .expect("opened")
        .into_inner()
        .closure
        .expect("it was closed"));
    for expected in [EventType::Closed, EventType::Opened] {
        let event = loop {
            let event = watch.message().await.expect("it lives").expect("an event");
            if event.subject.is_some() {
                break event;
            }
        };
        let subject = event.subject.clone().expect("a subject");
        assert_eq!(event.r#type(), expected);
        assert_eq!(subject.owner.expect("an owner").id, "alice");
        assert_eq!(subject.target.expect("a lock").name, LOCK);
    }
    let unknown = inspection.get_lock(get).await.expect_err("it is open");
    assert_eq!(unknown.code(), Code::NotFound);
    let opened = admin.open_lock(OpenLockRequest { lock: lock_ref() }).await;
    assert_eq!(opened.expect("it succeeds").into_inner().closure, None);
    broker.stop().await;
}

#[tokio::test]
async fn a_lease_with_at_least_closes_its_lock() {
    let broker = InProcessBroker::start().await;
    let mut locks = LockServiceClient::new(broker.channel());
    let call = AcquireRequest {
        at_least: seconds(3_600),
        ..acquire_request()
    };
    let held = locks.acquire(call).await.expect("it is free").into_inner();
    let release = ReleaseRequest {
        lease: held.lease,
        ..ReleaseRequest::default()
    };
    locks.release(release).await.expect("it is held");
    let rejected = locks.acquire(acquire_request()).await;
    let closure = closure_of(&rejected.expect_err("it is closed"));
    assert_closed_by(&closure, ClosureCause::AtLeast, "job", "nightly");
    broker.stop().await;
}

#[tokio::test]
async fn a_waiter_on_a_stream_learns_why_its_lock_is_closed() {
    let broker = InProcessBroker::start().await;
    let mut admin = AdminServiceClient::new(channel(broker.admin));
    let ttl = Duration::from_secs(30);
    let mut stream = StreamClient::open(broker.api).await;
    let now = AcquireCall::new(LOCK, ttl, Duration::ZERO);
    let held = stream.acquire(&now, 1).await;
    let lease = stream.expect_granted(held).await;
    let waiting = stream.acquire(&AcquireCall::new(LOCK, ttl, WAIT), 1).await;
    let position = stream.next_queue_position(waiting).await;
    assert_eq!((position.position, position.closure), (1, None));
    close(&mut admin, for_an_hour()).await.expect("closed");
    let position = stream.next_queue_position(waiting).await;
    assert_eq!((position.position, position.holders.len()), (1, 1));
    let closure = position.closure.expect("a closure");
    assert_closed_by(&closure, ClosureCause::Operator, "alice", REASON);
    stream.release(&lease.lease_id).await;
    let freed = stream.wait_for(|message| match message {
        Response::Queued(position) => Some(position),
        _ => None,
    });
    let position = freed.await;
    assert_eq!((position.position, position.holders.len()), (1, 0));
    let opened = admin.open_lock(OpenLockRequest { lock: lock_ref() }).await;
    opened.expect("opened");
    stream.expect_granted(waiting).await;
    drop(stream);
    broker.stop().await;
}

#[tokio::test]
async fn bad_closures_are_named() {
    let broker = InProcessBroker::start().await;
    let mut admin = AdminServiceClient::new(channel(broker.admin));
    let at = |seconds| Some(End::UntilTime(prost_types::Timestamp { seconds, nanos: 0 }));
    for (request, expected) in [
        (close_request(None), "until_time or duration is required"),
        (close_request(at(1)), "until_time must not be in the past"),
        (close_request(at(-1)), "until_time must not be in the past"),
        (
            close_request(at(253_402_300_799)),
            "until_time must be at most 31 days",
        ),
        (
            close_request(seconds(0).map(End::Duration)),
            "duration must be more than 0",
        ),
        (
            close_request(seconds(31 * 86_400 + 1).map(End::Duration)),
            "duration must be at most 31 days",
        ),
        (
            CloseLockRequest {
                reason: String::new(),
                ..for_an_hour()
            },
            "reason must be 1 to 512 bytes",
        ),
        (
            CloseLockRequest {
                operator: "a".repeat(257),
                ..for_an_hour()
            },
            "operator must be at most 256 bytes",
        ),
        (
            CloseLockRequest {
                lock: None,
                ..for_an_hour()
            },
            "lock is required",
        ),
    ] {
        let rejected = close(&mut admin, request).await.expect_err(expected);
        assert_eq!(rejected.code(), Code::InvalidArgument, "{rejected:?}");
        assert!(rejected.message().contains(expected), "{rejected:?}");
    }
    broker.stop().await;
}
