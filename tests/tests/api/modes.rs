//! Shared locks, semaphores and lease options over gRPC.

#![expect(
    clippy::disallowed_methods,
    reason = "a waiting call is a task of the test"
)]

use leasehold_proto::v1::{
    AcquireRequest, ErrorReason, GetLockRequest, Lease, Lock, LockMode, LockRef, LockTarget, Owner,
    PermitUsage, ReleaseRequest, RenewRequest, SetLockLimitRequest,
    inspection_service_client::InspectionServiceClient, lock,
    lock_service_client::LockServiceClient,
};
use leasehold_tests::{broker::in_process::InProcessBroker, status::error_reason};
use tonic::{Code, Status, transport::Channel};
use tonic_types::StatusExt as _;

type LockService = LockServiceClient<Channel>;

const LOCK: &str = "a-lock";

fn target(mode: LockMode, permits: i32, limit: i32) -> LockTarget {
    LockTarget {
        namespace: "default".to_owned(),
        name: LOCK.to_owned(),
        mode: mode.into(),
        permits,
        limit,
    }
}

async fn acquire(locks: &mut LockService, target: LockTarget) -> Result<Lease, Status> {
    let request = AcquireRequest {
        target: Some(target),
        owner: Some(Owner {
            id: "worker-1".to_owned(),
            ..Owner::default()
        }),
        ..AcquireRequest::default()
    };
    let response = locks.acquire(request).await?.into_inner();
    Ok(response.lease.expect("OK means held"))
}

async fn release(locks: &mut LockService, lease: Lease) {
    let request = ReleaseRequest {
        lease: Some(lease),
        ..ReleaseRequest::default()
    };
    locks.release(request).await.expect("the holder");
}

async fn lock_state(broker: &InProcessBroker) -> Lock {
    let request = GetLockRequest {
        name: LOCK.to_owned(),
        ..GetLockRequest::default()
    };
    let mut inspection = InspectionServiceClient::new(broker.channel());
    let response = inspection.get_lock(request).await.expect("it is in use");
    response.into_inner().lock.expect("a lock")
}

fn usage(limit: i32, used: i32) -> Option<PermitUsage> {
    Some(PermitUsage {
        limit,
        used,
        is_limit_set: true,
    })
}

fn lock_target(lease: &Lease) -> LockTarget {
    lease.grants[0].target.clone().expect("a target")
}

fn refused(answer: Result<Lease, Status>) -> (Code, Option<ErrorReason>, String) {
    let status = answer.expect_err("a refusal");
    (
        status.code(),
        error_reason(&status),
        status.message().to_owned(),
    )
}

#[tokio::test]
async fn readers_share_what_a_writer_does_not() {
    let broker = InProcessBroker::start().await;
    let locks = &mut LockService::new(broker.channel());
    let (read, write) = (
        target(LockMode::Shared, 0, 0),
        target(LockMode::Exclusive, 0, 0),
    );
    let first = acquire(locks, read.clone()).await.expect("it is free");
    let second = acquire(locks, read.clone()).await.expect("it is shared");
    assert_eq!(
        (lock_target(&first), lock_target(&second)),
        (read.clone(), read.clone())
    );
    let renew = RenewRequest {
        lease: Some(first.clone()),
        ttl: None,
    };
    let renewed = locks.renew(renew).await.expect("the holder").into_inner();
    assert_eq!(lock_target(&renewed.lease.expect("a lease")), read);
    let lock = lock_state(&broker).await;
    assert_eq!((lock.holder_count, lock.holders.len()), (2, 2));
    assert_eq!(lock.target, Some(read.clone()));
    let (code, reason, _) = refused(acquire(locks, write.clone()).await);
    assert_eq!((code, reason), (Code::Aborted, Some(ErrorReason::LockHeld)));
    release(locks, first).await;
    release(locks, second).await;
    let writer = acquire(locks, write.clone()).await.expect("it is free");
    assert_eq!(lock_target(&writer), write);
    let (code, reason, _) = refused(acquire(locks, read).await);
    assert_eq!((code, reason), (Code::Aborted, Some(ErrorReason::LockHeld)));
    broker.stop().await;
}

#[tokio::test]
async fn a_semaphore_counts_permits_and_keeps_its_limit() {
    let broker = InProcessBroker::start().await;
    let locks = &mut LockService::new(broker.channel());
    let semaphore = |permits, limit| target(LockMode::Semaphore, permits, limit);
    let (code, reason, message) = refused(acquire(locks, semaphore(1, 0)).await);
    let mismatch = (Code::FailedPrecondition, Some(ErrorReason::LimitMismatch));
    assert_eq!((code, reason), mismatch);
    assert!(message.contains("has no limit"), "{message}");
    let one = acquire(locks, semaphore(0, 3)).await.expect("it is free");
    assert_eq!(lock_target(&one), semaphore(1, 3));
    acquire(locks, semaphore(2, 0)).await.expect("2 are left");
    assert_eq!(lock_state(&broker).await.target, Some(semaphore(0, 3)));
    let (code, reason, _) = refused(acquire(locks, semaphore(1, 3)).await);
    assert_eq!((code, reason), (Code::Aborted, Some(ErrorReason::LockHeld)));
    for other in [
        semaphore(1, 4),
        semaphore(4, 0),
        target(LockMode::Shared, 0, 0),
        target(LockMode::Exclusive, 0, 0),
    ] {
        let (code, reason, message) = refused(acquire(locks, other).await);
        assert_eq!((code, reason), mismatch);
        assert!(message.contains("a semaphore of 3 permits"), "{message}");
    }
    release(locks, one).await;
    acquire(locks, semaphore(1, 3)).await.expect("1 is back");
    broker.stop().await;
}

fn ms(ms: i32) -> Option<prost_types::Duration> {
    Some(prost_types::Duration {
        seconds: 0,
        nanos: ms * 1_000_000,
    })
}

#[tokio::test]
async fn a_lease_ends_with_its_max_hold_and_closes_the_lock() {
    let broker = InProcessBroker::start().await;
    let locks = &mut LockService::new(broker.channel());
    let request = AcquireRequest {
        target: Some(target(LockMode::Exclusive, 0, 0)),
        owner: Some(Owner {
            id: "worker-1".to_owned(),
            ..Owner::default()
        }),
        max_hold: ms(300),
        lock_delay: ms(900),
        ..AcquireRequest::default()
    };
    let held = locks.acquire(request).await.expect("it is free");
    let lease = held.into_inner().lease.expect("a lease");
    assert_eq!(lease.ttl, ms(300), "cut");
    let over = loop {
        let renew = RenewRequest {
            lease: Some(lease.clone()),
            ttl: None,
        };
        match locks.renew(renew).await {
            Ok(renewed) => assert!(renewed.into_inner().lease.is_some()),
            Err(status) => break status,
        }
    };
    assert_eq!(error_reason(&over), Some(ErrorReason::LeaseExpired));
    assert!(over.message().contains("max_hold"), "{}", over.message());
    while lock_state(&broker).await.state() == lock::State::Held {}
    assert_eq!(lock_state(&broker).await.state(), lock::State::Closed);
    let closed = acquire(locks, target(LockMode::Exclusive, 0, 0)).await;
    let closed = closed.expect_err("a closed lock");
    assert_eq!(error_reason(&closed), Some(ErrorReason::LockHeld));
    assert!(closed.get_details_retry_info().is_some(), "when it opens");
    broker.stop().await;
}

#[tokio::test]
async fn the_limit_of_a_semaphore_is_set() {
    let broker = InProcessBroker::start().await;
    let locks = &mut LockService::new(broker.channel());
    let lock = Some(LockRef {
        name: LOCK.to_owned(),
        ..LockRef::default()
    });
    let set = |limit| SetLockLimitRequest {
        lock: lock.clone(),
        limit,
    };
    let mut setter = locks.clone();
    let before = setter.set_lock_limit(set(2)).await.expect("it is idle");
    assert_eq!(before.into_inner().previous_limit, 0);
    let idle = lock_state(&broker).await;
    assert_eq!(idle.state(), lock::State::Free, "shown for its limit");
    assert_eq!(idle.permit_usage, usage(2, 0));
    let before = setter.set_lock_limit(set(1)).await.expect("a semaphore");
    assert_eq!(before.into_inner().previous_limit, 2);
    let lease = acquire(locks, target(LockMode::Semaphore, 1, 9)).await;
    let lease = lease.expect("the caller's limit does not count");
    let waits = AcquireRequest {
        target: Some(target(LockMode::Semaphore, 1, 9)),
        owner: Some(Owner {
            id: "worker-2".to_owned(),
            ..Owner::default()
        }),
        wait_timeout: Some(prost_types::Duration {
            seconds: 20,
            nanos: 0,
        }),
        ..AcquireRequest::default()
    };
    let mut other = locks.clone();
    let waits = tokio::spawn(async move { other.acquire(waits).await });
    while lock_state(&broker).await.queue_length == 0 {}
    setter.set_lock_limit(set(2)).await.expect("a semaphore");
    let next = waits.await.expect("no panic").expect("it has grown");
    let next = next.into_inner().lease.expect("OK means held");
    assert_eq!(lock_target(&next).limit, 2, "the limit in use");
    assert_eq!(lock_state(&broker).await.permit_usage, usage(2, 2));
    release(locks, lease).await;
    for limit in [-1, 1_001] {
        let status = setter
            .set_lock_limit(set(limit))
            .await
            .expect_err("illegal");
        assert_eq!(status.code(), Code::InvalidArgument);
    }
    broker.stop().await;
}

#[tokio::test]
async fn a_limit_that_was_set_by_mistake_is_removed() {
    let broker = InProcessBroker::start().await;
    let locks = &mut LockService::new(broker.channel());
    let mut setter = locks.clone();
    let set = |limit| SetLockLimitRequest {
        lock: Some(LockRef {
            name: LOCK.to_owned(),
            ..LockRef::default()
        }),
        limit,
    };
    setter
        .set_lock_limit(set(7))
        .await
        .expect("the lock is idle");
    let refused = acquire(locks, target(LockMode::Exclusive, 0, 0)).await;
    let refused = refused.expect_err("a semaphore of 7 permits");
    assert_eq!(error_reason(&refused), Some(ErrorReason::LimitMismatch));
    let removed = setter.set_lock_limit(set(0)).await.expect("a limit is set");
    assert_eq!(removed.into_inner().previous_limit, 7);
    for mode in [LockMode::Exclusive, LockMode::Shared] {
        let lease = acquire(locks, target(mode, 0, 0)).await;
        let lease = lease.expect("the lock has no limit");
        let refused = setter.set_lock_limit(set(7)).await.expect_err("in use");
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert_eq!(error_reason(&refused), Some(ErrorReason::LimitMismatch));
        let message = refused.message();
        assert!(
            message.ends_with("set the limit when the lock is idle"),
            "{message}"
        );
        release(locks, lease).await;
    }
    broker.stop().await;
}

#[tokio::test]
async fn illegal_permits_are_named() {
    let broker = InProcessBroker::start().await;
    let locks = &mut LockService::new(broker.channel());
    for (target, fields) in [
        (target(LockMode::Exclusive, 1, 0), &["target.permits"][..]),
        (
            target(LockMode::Shared, 1, 1),
            &["target.permits", "target.limit"],
        ),
        (target(LockMode::Semaphore, -1, 0), &["target.permits"]),
        (target(LockMode::Semaphore, 0, 1_001), &["target.limit"]),
        (
            target(LockMode::Semaphore, 1_001, -1),
            &["target.permits", "target.limit"],
        ),
        (target(LockMode::Semaphore, 3, 2), &["target.permits"]),
    ] {
        let status = acquire(locks, target).await.expect_err("illegal");
        assert_eq!(status.code(), Code::InvalidArgument);
        let violations = status.get_details_bad_request().expect("a BadRequest");
        let violations = violations.field_violations.into_iter();
        let named: Vec<_> = violations.map(|violation| violation.field).collect();
        assert_eq!(named, fields);
    }
    broker.stop().await;
}
