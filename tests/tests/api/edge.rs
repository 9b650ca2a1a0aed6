//! Validation at the API over a real socket: rejections and their messages, and other services on
//! the listener.

use std::time::Duration;

use leasehold_proto::v1::ErrorReason;
use leasehold_proto::v1::{
    AcquireRequest, CheckFencingTokenRequest, Contention, GetLockRequest, Lease, LockRef,
    LockTarget, Owner, ReleaseRequest, RenewRequest,
    inspection_service_client::InspectionServiceClient, lock_service_client::LockServiceClient,
};
use leasehold_tests::{broker::in_process::InProcessBroker, status::error_reason};
use prost::Message as _;
use tonic::{Code, Request, Status, transport::Channel};
use tonic_types::StatusExt as _;
use uuid::Uuid;

type LockService = LockServiceClient<Channel>;

fn duration(seconds: i64, nanos: i32) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos })
}

fn valid(name: &str) -> AcquireRequest {
    AcquireRequest {
        target: Some(LockTarget {
            name: name.to_owned(),
            ..LockTarget::default()
        }),
        owner: Some(Owner {
            id: "worker-1".to_owned(),
            ..Owner::default()
        }),
        request_id: Uuid::new_v4().to_string(),
        ..AcquireRequest::default()
    }
}

fn fields(status: &Status) -> Vec<String> {
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    assert_eq!(error_reason(status), Some(ErrorReason::InvalidField));
    assert!(
        status.details().len() < 4_096,
        "{} bytes",
        status.details().len()
    );
    let details = status.get_error_details();
    let violations = &details
        .bad_request()
        .expect("a BadRequest")
        .field_violations;
    violations
        .iter()
        .map(|violation| violation.field.clone())
        .collect()
}

/// Changes a valid request and returns the fields that the broker rejects.
async fn rejected_fields(
    locks: &mut LockService,
    change: impl FnOnce(&mut AcquireRequest),
) -> Vec<String> {
    let mut request = valid("a-lock");
    change(&mut request);
    fields(
        &locks
            .acquire(request)
            .await
            .expect_err("an illegal request"),
    )
}

fn target(request: &mut AcquireRequest) -> &mut LockTarget {
    request.target.as_mut().expect("a target")
}

fn owner_mut(request: &mut AcquireRequest) -> &mut Owner {
    request.owner.as_mut().expect("an owner")
}

#[tokio::test]
async fn each_illegal_field_of_acquire_is_named() {
    let broker = InProcessBroker::start().await;
    let locks = &mut LockService::new(broker.channel());
    assert_eq!(
        rejected_fields(locks, |r| r.target = None).await,
        ["target"]
    );
    assert_eq!(rejected_fields(locks, |r| r.owner = None).await, ["owner"]);
    for name in [
        String::new(),
        "x".repeat(513),
        "a\nb".to_owned(),
        "\u{7f}".to_owned(),
    ] {
        assert_eq!(
            rejected_fields(locks, |r| target(r).name = name).await,
            ["target.name"]
        );
    }
    for namespace in ["Upper".to_owned(), "a_b".to_owned(), "x".repeat(64)] {
        let named = rejected_fields(locks, |r| target(r).namespace = namespace).await;
        assert_eq!(named, ["target.namespace"]);
    }
    assert_eq!(
        rejected_fields(locks, |r| target(r).mode = 99).await,
        ["target.mode"]
    );
    for id in [String::new(), "x".repeat(257)] {
        assert_eq!(
            rejected_fields(locks, |r| owner_mut(r).id = id).await,
            ["owner.id"]
        );
    }
    assert_eq!(
        rejected_fields(locks, |r| owner_mut(r).reason = "x".repeat(513)).await,
        ["owner.reason"]
    );
    let long_label = ("key".to_owned(), "x".repeat(1_024));
    let named = rejected_fields(locks, |r| owner_mut(r).labels.extend([long_label])).await;
    assert_eq!(named, ["owner"]);
    let many = (0..17).map(|n| (n.to_string(), String::new()));
    assert_eq!(
        rejected_fields(locks, |r| owner_mut(r).labels.extend(many)).await,
        ["owner.labels"]
    );
    let empty_key = (String::new(), "x".to_owned());
    let named = rejected_fields(locks, |r| owner_mut(r).labels.extend([empty_key])).await;
    assert_eq!(named, [r#"owner.labels[""]"#]);
    assert_eq!(
        rejected_fields(locks, |r| r.request_id = "not-a-uuid".to_owned()).await,
        ["request_id"]
    );
    broker.stop().await;
}

#[tokio::test]
async fn illegal_times_are_named() {
    let broker = InProcessBroker::start().await;
    let locks = &mut LockService::new(broker.channel());
    for (seconds, nanos) in [
        (0, 0),
        (-1, 0),
        (0, -1),
        (1, 1_000_000_000),
        (1, -1),
        (-1, 1),
        (i64::MAX, 0),
        (i64::MIN, i32::MIN),
        (315_576_000_001, 0),
    ] {
        let mut named = rejected_fields(locks, |r| r.ttl = duration(seconds, nanos)).await;
        named.dedup();
        assert_eq!(named, ["ttl"], "{seconds} s {nanos} ns");
    }
    for (seconds, nanos) in [(-1, 0), (0, -1), (1, -1), (0, i32::MAX), (i64::MAX, 0)] {
        let named = rejected_fields(locks, |r| r.wait_timeout = duration(seconds, nanos)).await;
        assert_eq!(named, ["wait_timeout"], "{seconds} s {nanos} ns");
    }
    for (seconds, nanos) in [(0, 0), (-1, 0), (i64::MAX, 0)] {
        let mut named = rejected_fields(locks, |r| r.max_hold = duration(seconds, nanos)).await;
        named.dedup();
        assert_eq!(named, ["max_hold"], "{seconds} s {nanos} ns");
    }
    for (seconds, nanos) in [(-1, 0), (10, 1), (i64::MAX, 0)] {
        let mut named = rejected_fields(locks, |r| r.lock_delay = duration(seconds, nanos)).await;
        named.dedup();
        assert_eq!(named, ["lock_delay"], "{seconds} s {nanos} ns");
    }
    broker.stop().await;
}

#[tokio::test]
async fn eight_violations_are_listed_and_nothing_is_written() {
    let broker = InProcessBroker::start().await;
    let locks = &mut LockService::new(broker.channel());
    let long_keys = (0..2).map(|n| (format!("{n:02}{}", "\"".repeat(100)), String::new()));
    let named = rejected_fields(locks, |r| {
        *target(r) = LockTarget {
            namespace: "A".to_owned(),
            mode: 7,
            ..LockTarget::default()
        };
        owner_mut(r).id.clear();
        owner_mut(r).labels.extend(long_keys);
        r.ttl = duration(0, 0);
        r.wait_timeout = duration(-1, 0);
        r.request_id = "x".to_owned();
    })
    .await;
    for field in [
        "target.namespace",
        "target.name",
        "target.mode",
        "owner.id",
        "ttl",
    ] {
        assert!(named.iter().any(|name| name == field), "{field}: {named:?}");
    }
    assert_eq!(named.len(), 8, "{named:?}");
    rejected_fields(locks, |r| r.ttl = duration(0, 0)).await;
    let mut inspection = InspectionServiceClient::new(broker.channel());
    let look = GetLockRequest {
        name: "a-lock".to_owned(),
        ..GetLockRequest::default()
    };
    let status = inspection
        .get_lock(look)
        .await
        .expect_err("nothing was written");
    assert_eq!(status.code(), Code::NotFound);
    broker.stop().await;
}

#[tokio::test]
async fn a_lease_must_be_presented_as_it_was_received() {
    let broker = InProcessBroker::start().await;
    let locks = &mut LockService::new(broker.channel());
    let bare = |lease| ReleaseRequest {
        lease,
        ..ReleaseRequest::default()
    };
    let status = locks.release(bare(None)).await.expect_err("no lease");
    assert_eq!(fields(&status), ["lease"]);
    let status = locks
        .release(bare(Some(Lease::default())))
        .await
        .expect_err("empty lease");
    assert_eq!(
        fields(&status),
        ["lease.lease_id", "lease.lease_token", "lease.grants"]
    );
    let held = locks
        .acquire(valid("held"))
        .await
        .expect("a free lock")
        .into_inner();
    let held = held.lease.expect("a lease");
    for token in [0, -1, 1 << 53] {
        let mut lease = held.clone();
        lease.grants[0].fencing_token = token;
        let renew = RenewRequest {
            lease: Some(lease),
            ttl: duration(0, 0),
        };
        let status = locks.renew(renew).await.expect_err("an illegal token");
        assert_eq!(fields(&status), ["ttl", "lease.grants[0].fencing_token"]);
        let check = CheckFencingTokenRequest {
            lock: None,
            fencing_token: token,
        };
        let status = locks
            .check_fencing_token(check)
            .await
            .expect_err("an illegal token");
        assert_eq!(fields(&status), ["lock", "fencing_token"]);
    }
    let other = LockRef {
        name: "other".to_owned(),
        ..LockRef::default()
    };
    let release = ReleaseRequest {
        lock: Some(other),
        ..bare(Some(held.clone()))
    };
    let status = locks.release(release).await.expect_err("another lock");
    assert_eq!(fields(&status), ["lock"]);
    let forged = Lease {
        lease_token: "guess".to_owned(),
        ..held.clone()
    };
    let status = locks
        .release(bare(Some(forged)))
        .await
        .expect_err("a forged token");
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(error_reason(&status), Some(ErrorReason::NotHolder));
    let again = locks
        .release(bare(Some(held.clone())))
        .await
        .expect("the holder");
    assert!(!again.into_inner().already_released);
    let again = locks.release(bare(Some(held))).await.expect("the holder");
    assert!(again.into_inner().already_released);
    broker.stop().await;
}

#[tokio::test]
async fn a_rejection_of_a_held_lock_names_its_holder() {
    let broker = InProcessBroker::start().await;
    let locks = &mut LockService::new(broker.channel());
    let mut request = valid("{a} %b 订单");
    owner_mut(&mut request).reason = "ü".repeat(256);
    owner_mut(&mut request)
        .labels
        .insert("team".to_owned(), "red".to_owned());
    request.ttl = duration(3_600, 0);
    let lease = locks
        .acquire(request)
        .await
        .expect("a free lock")
        .into_inner()
        .lease;
    assert_eq!(lease.expect("a lease").ttl, duration(60, 0), "clamped");
    let status = locks.acquire(valid("{a} %b 订单")).await.expect_err("held");
    assert_eq!(
        (status.code(), error_reason(&status)),
        (Code::Aborted, Some(ErrorReason::LockHeld))
    );
    assert!(status.get_details_retry_info().is_some());
    let mut waiting = valid("{a} %b 订单");
    waiting.wait_timeout = duration(0, 1);
    let status = locks.acquire(waiting).await.expect_err("held");
    assert_eq!(error_reason(&status), Some(ErrorReason::WaitTimeout));
    let details = tonic_types::pb::Status::decode(status.details()).expect("a google.rpc.Status");
    let packed = details
        .details
        .iter()
        .find(|any| any.type_url.ends_with(".Contention"));
    let contention = Contention::decode(&*packed.expect("a Contention").value).expect("its bytes");
    let holder = contention.holders[0].owner.as_ref().expect("an owner");
    assert_eq!(holder.reason, "ü".repeat(64));
    assert!(holder.labels.is_empty());
    let mut reused = valid("free");
    locks.acquire(reused.clone()).await.expect("a free lock");
    reused.ttl = duration(20, 0);
    let status = locks.acquire(reused).await.expect_err("other arguments");
    assert_eq!(error_reason(&status), Some(ErrorReason::RequestIdReused));
    broker.stop().await;
}

/// On a busy machine a response may arrive after the deadline. The client then reports the exceeded
/// deadline.
#[tokio::test]
async fn a_wait_ends_before_the_deadline_of_the_call() {
    const DEADLINE: Duration = Duration::from_millis(600);
    let broker = InProcessBroker::start().await;
    let locks = &mut LockService::new(broker.channel());
    locks.acquire(valid("a-lock")).await.expect("a free lock");
    let mut answers = 0;
    for _ in 0..10 {
        let mut request = Request::new(AcquireRequest {
            wait_timeout: duration(60, 0),
            ..valid("a-lock")
        });
        request.set_timeout(DEADLINE);
        let started = tokio::time::Instant::now();
        let status = locks.acquire(request).await.expect_err("held");
        if error_reason(&status) == Some(ErrorReason::WaitTimeout) {
            assert!(started.elapsed() < DEADLINE);
            answers += 1;
            break;
        }
        let is_too_late = status.code() == Code::Cancelled && started.elapsed() >= DEADLINE;
        assert!(is_too_late, "{status:?} after {:?}", started.elapsed());
    }
    assert_eq!(answers, 1, "in time at least once");
    broker.stop().await;
}
