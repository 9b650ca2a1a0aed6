//! Re-entry and additional locks of a lease over gRPC.

#![expect(
    clippy::disallowed_methods,
    reason = "a waiting call is a task of the test"
)]

use std::time::Duration;

use leasehold_proto::v1::{
    AcquireRequest, ErrorReason, Lease, LockMode, LockRef, LockTarget, Owner, ReleaseRequest,
    ReleaseResponse, RenewRequest, lock_service_client::LockServiceClient,
};
use leasehold_tests::{broker::in_process::InProcessBroker, status::error_reason};
use tonic::{Code, Status, transport::Channel};
use tonic_types::StatusExt as _;
use uuid::Uuid;

type LockService = LockServiceClient<Channel>;

fn acquire_request(name: &str, mode: LockMode) -> AcquireRequest {
    AcquireRequest {
        target: Some(LockTarget {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            mode: mode.into(),
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

fn exclusive(name: &str) -> AcquireRequest {
    acquire_request(name, LockMode::Exclusive)
}

fn under(lease: &Lease, request: AcquireRequest) -> AcquireRequest {
    AcquireRequest {
        under: Some(lease.clone()),
        ..request
    }
}

async fn acquire(locks: &mut LockService, request: &AcquireRequest) -> Result<Lease, Status> {
    let response = locks.acquire(request.clone()).await?.into_inner();
    Ok(response.lease.expect("OK means held"))
}

async fn renew(locks: &mut LockService, lease: &Lease) -> Result<Lease, Status> {
    let request = RenewRequest {
        lease: Some(lease.clone()),
        ttl: None,
    };
    let response = locks.renew(request).await?.into_inner();
    Ok(response.lease.expect("a lease"))
}

/// Releases one lock, or one entry of a lock.
async fn release_entry(
    locks: &mut LockService,
    lease: &Lease,
    name: &str,
    entry: Option<&AcquireRequest>,
) -> Result<ReleaseResponse, Status> {
    let request = ReleaseRequest {
        lease: Some(lease.clone()),
        lock: Some(LockRef {
            name: name.to_owned(),
            ..LockRef::default()
        }),
        request_id: entry.map_or_else(String::new, |request| request.request_id.clone()),
    };
    Ok(locks.release(request).await?.into_inner())
}

async fn release(locks: &mut LockService, lease: &Lease) -> Result<ReleaseResponse, Status> {
    let request = ReleaseRequest {
        lease: Some(lease.clone()),
        ..ReleaseRequest::default()
    };
    Ok(locks.release(request).await?.into_inner())
}

fn names(lease: &Lease) -> Vec<&str> {
    let targets = lease.grants.iter().map(|grant| grant.target.as_ref());
    let names = targets.map(|target| target.expect("a target").name.as_str());
    names.collect()
}

fn mode(lease: &Lease) -> LockMode {
    lease.grants[0].target.as_ref().expect("a target").mode()
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Status>) -> (Code, Option<ErrorReason>) {
    let status = answer.expect_err("a refusal");
    (status.code(), error_reason(&status))
}

fn release_response(already_released: bool, hold_count: i32) -> ReleaseResponse {
    ReleaseResponse {
        already_released,
        hold_count,
    }
}

const EXPIRED: (Code, Option<ErrorReason>) = (Code::Aborted, Some(ErrorReason::LeaseExpired));
const HELD: (Code, Option<ErrorReason>) = (Code::Aborted, Some(ErrorReason::LockHeld));

#[tokio::test]
async fn a_lease_enters_and_leaves_by_request_id() {
    let broker = InProcessBroker::start().await;
    let locks = &mut LockService::new(broker.channel());
    let outer = exclusive("a");
    let lease = acquire(locks, &outer).await.expect("it is free");
    let inner = under(&lease, exclusive("a"));
    for _ in 0..2 {
        let entered = acquire(locks, &inner).await.expect("the holder");
        assert_eq!(entered.grants[0].hold_count, 2);
        assert_eq!(entered.lease_id, lease.lease_id);
        let tokens = [&entered, &lease].map(|lease| lease.grants[0].fencing_token);
        assert_eq!(tokens[0], tokens[1]);
    }
    let left = release_entry(locks, &lease, "a", Some(&inner)).await;
    assert_eq!(left.expect("an entry"), release_response(false, 1));
    let left = release_entry(locks, &lease, "a", Some(&inner)).await;
    assert_eq!(left.expect("an entry"), release_response(true, 1));
    let renewed = renew(locks, &lease).await.expect("the holder");
    assert_eq!(renewed.grants[0].hold_count, 1);
    assert_eq!(refused(acquire(locks, &exclusive("a")).await), HELD);
    let left = release_entry(locks, &lease, "a", Some(&outer)).await;
    assert_eq!(left.expect("the last entry"), release_response(false, 0));
    assert_eq!(
        release(locks, &lease).await.expect("repeats"),
        release_response(true, 0)
    );
    assert_eq!(refused(acquire(locks, &inner).await), EXPIRED);
    acquire(locks, &exclusive("a")).await.expect("it is free");
    broker.stop().await;
}

/// Re-entrant lock of the reference script: unlock returns nil for other callers, 0 while the lock
/// is still held, and 1 when it becomes free.
#[tokio::test]
async fn the_seeds_reentrant_unlock_answers_nil_0_and_1() {
    let broker = InProcessBroker::start().await;
    let locks = &mut LockService::new(broker.channel());
    let outer = exclusive("a");
    let lease = acquire(locks, &outer).await.expect("it is free");
    let inner = under(&lease, exclusive("a"));
    acquire(locks, &inner).await.expect("the holder");
    let mut stranger = acquire(locks, &exclusive("b")).await.expect("it is free");
    stranger.lease_id.clone_from(&lease.lease_id);
    stranger.grants.clone_from(&lease.grants);
    let nil = (Code::FailedPrecondition, Some(ErrorReason::NotHolder));
    assert_eq!(
        refused(release_entry(locks, &stranger, "a", Some(&outer)).await),
        nil
    );
    let enters = under(&stranger, exclusive("a"));
    assert_eq!(refused(acquire(locks, &enters).await), nil);
    let still_held = release_entry(locks, &lease, "a", Some(&inner)).await;
    assert_eq!(still_held.expect("an entry").hold_count, 1);
    let free = release_entry(locks, &lease, "a", Some(&outer)).await;
    assert_eq!(free.expect("an entry").hold_count, 0);
    broker.stop().await;
}

#[tokio::test]
async fn a_writer_becomes_a_reader_and_never_the_other_way() {
    let broker = InProcessBroker::start().await;
    let locks = &mut LockService::new(broker.channel());
    let write = exclusive("a");
    let lease = acquire(locks, &write).await.expect("it is free");
    let read = under(&lease, acquire_request("a", LockMode::Shared));
    let entered = acquire(locks, &read).await.expect("the holder");
    assert_eq!(mode(&entered), LockMode::Exclusive);
    let stranger = acquire_request("a", LockMode::Shared);
    assert_eq!(refused(acquire(locks, &stranger).await), HELD);
    let left = release_entry(locks, &entered, "a", Some(&write)).await;
    assert_eq!(left.expect("an entry"), release_response(false, 1));
    let renewed = renew(locks, &entered).await.expect("the holder");
    assert_eq!(mode(&renewed), LockMode::Shared);
    assert_eq!(
        renewed.grants[0].fencing_token,
        lease.grants[0].fencing_token
    );
    acquire(locks, &stranger).await.expect("readers share");
    let upgrade = under(&renewed, exclusive("a"));
    let denied = (Code::FailedPrecondition, Some(ErrorReason::UpgradeDenied));
    assert_eq!(refused(acquire(locks, &upgrade).await), denied);
    renew(locks, &renewed).await.expect("the holder");
    broker.stop().await;
}

#[tokio::test]
async fn a_lease_takes_other_locks_and_drops_those_that_are_released() {
    let broker = InProcessBroker::start().await;
    let locks = &mut LockService::new(broker.channel());
    let first = acquire(locks, &exclusive("b")).await.expect("it is free");
    let add = under(&first, exclusive("a"));
    let both = acquire(locks, &add).await.expect("it is free");
    assert_eq!(names(&both), ["b", "a"]);
    assert_eq!(both.lease_token, first.lease_token);
    let repeated = acquire(locks, &add).await.expect("the same");
    assert_eq!(repeated.grants, both.grants);
    let renewed = renew(locks, &both).await.expect("the holder");
    assert_eq!(names(&renewed), ["b", "a"]);
    let left = release_entry(locks, &both, "b", None).await;
    assert_eq!(left.expect("one of two"), release_response(false, 0));
    let renewed = renew(locks, &both).await.expect("no loss");
    assert_eq!(names(&renewed), ["a"]);
    acquire(locks, &exclusive("b")).await.expect("it is free");
    let released = release(locks, &both).await.expect("the holder");
    assert_eq!(released, release_response(false, 0));
    acquire(locks, &exclusive("a")).await.expect("it is free");
    assert_eq!(refused(renew(locks, &both).await), EXPIRED);
    broker.stop().await;
}

#[tokio::test]
async fn an_old_copy_of_a_lease_enters_what_it_does_not_name() {
    let broker = InProcessBroker::start().await;
    let locks = &mut LockService::new(broker.channel());
    let old = acquire(locks, &exclusive("a")).await.expect("it is free");
    let add = under(&old, exclusive("b"));
    let both = acquire(locks, &add).await.expect("it is free");
    let entered = acquire(locks, &under(&old, exclusive("b"))).await;
    let entered = entered.expect("the lease holds it");
    assert_eq!(names(&entered), ["a", "b"]);
    assert_eq!(entered.grants[1].hold_count, 2);
    assert_eq!(
        entered.grants[1].fencing_token,
        both.grants[1].fencing_token
    );
    broker.stop().await;
}

#[tokio::test]
async fn a_lease_that_lost_a_lock_takes_no_other() {
    let broker = InProcessBroker::start().await;
    let locks = &mut LockService::new(broker.channel());
    let second = Some(prost_types::Duration {
        seconds: 1,
        nanos: 0,
    });
    let short = AcquireRequest {
        ttl: second,
        max_hold: second,
        ..exclusive("a")
    };
    let lease = acquire(locks, &short).await.expect("it is free");
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let add = under(&lease, exclusive("b"));
    assert_eq!(refused(acquire(locks, &add).await), EXPIRED);
    acquire(locks, &exclusive("b")).await.expect("rolled back");
    let waits = AcquireRequest {
        wait_timeout: Some(prost_types::Duration {
            seconds: 60,
            nanos: 0,
        }),
        ..under(&lease, exclusive("b"))
    };
    let timed_wait = tokio::time::timeout(Duration::from_secs(10), acquire(locks, &waits));
    assert_eq!(
        refused(timed_wait.await.expect("notified at once")),
        EXPIRED
    );
    broker.stop().await;
}

/// A lease ends with the first of its locks that is lost.
#[tokio::test]
async fn the_loss_of_one_lock_is_the_end_of_the_lease() {
    let broker = InProcessBroker::start().await;
    let locks = &mut LockService::new(broker.channel());
    let first = acquire(locks, &exclusive("a")).await.expect("it is free");
    let second = Some(prost_types::Duration {
        seconds: 1,
        nanos: 0,
    });
    let short = AcquireRequest {
        max_hold: second,
        ..under(&first, exclusive("b"))
    };
    let both = acquire(locks, &short).await.expect("it is free");
    assert!(both.ttl.as_ref().expect("a ttl").seconds <= 1, "{both:?}");
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(refused(renew(locks, &both).await), EXPIRED);
    assert_eq!(refused(acquire(locks, &exclusive("a")).await), HELD);
    release(locks, &both).await.expect("still to be released");
    acquire(locks, &exclusive("a")).await.expect("it is free");
    broker.stop().await;
}

#[tokio::test]
async fn an_added_lock_is_waited_for() {
    let broker = InProcessBroker::start().await;
    let locks = &mut LockService::new(broker.channel());
    let other = acquire(locks, &exclusive("b")).await.expect("it is free");
    let lease = acquire(locks, &exclusive("a")).await.expect("it is free");
    let wait = |nanos, seconds| AcquireRequest {
        wait_timeout: Some(prost_types::Duration { seconds, nanos }),
        ..under(&lease, exclusive("b"))
    };
    let timed_out = acquire(locks, &wait(100_000_000, 0)).await;
    let timeout = (Code::Aborted, Some(ErrorReason::WaitTimeout));
    assert_eq!(refused(timed_out), timeout);
    let (mut waiting, request) = (locks.clone(), wait(0, 20));
    let waits = tokio::spawn(async move { acquire(&mut waiting, &request).await });
    let client = leasehold_tests::client::unary::Client::new("observer", &[broker.api], 0);
    client.wait_for_queue_length_at(0, "b", 1).await;
    release(locks, &other).await.expect("the holder");
    let both = waits.await.expect("no panic").expect("it is free");
    assert_eq!(names(&both), ["a", "b"]);
    broker.stop().await;
}

#[tokio::test]
async fn what_cannot_be_under_a_lease_is_named() {
    let broker = InProcessBroker::start().await;
    let locks = &mut LockService::new(broker.channel());
    let lease = acquire(locks, &exclusive("a")).await.expect("it is free");
    let second = Some(prost_types::Duration {
        seconds: 1,
        nanos: 0,
    });
    let terms = AcquireRequest {
        max_hold: second,
        lock_delay: second,
        ..under(&lease, exclusive("a"))
    };
    let twice = Lease {
        grants: [&lease.grants[..], &lease.grants[..]].concat(),
        ..lease.clone()
    };
    for (request, fields) in [
        (terms, &["max_hold", "lock_delay"][..]),
        (under(&twice, exclusive("b")), &["under.grants"]),
        (
            under(&Lease::default(), exclusive("b")),
            &["under.lease_id", "under.lease_token", "under.grants"],
        ),
    ] {
        let status = acquire(locks, &request).await.expect_err("illegal");
        let violations = status.get_details_bad_request().expect("a BadRequest");
        let violations = violations.field_violations.into_iter();
        let named: Vec<_> = violations.map(|violation| violation.field).collect();
        assert_eq!(named, fields);
    }
    let no_lock = ReleaseRequest {
        lease: Some(lease.clone()),
        lock: None,
        request_id: Uuid::new_v4().to_string(),
    };
    let status = locks.release(no_lock).await.expect_err("illegal");
    assert!(status.message().contains("lock is required"), "{status:?}");
    let other = release_entry(locks, &lease, "b", None).await;
    assert_eq!(refused(other).0, Code::InvalidArgument);
    broker.stop().await;
}

#[tokio::test]
async fn a_lease_has_at_most_sixty_four_locks() {
    let broker = InProcessBroker::start().await;
    let locks = &mut LockService::new(broker.channel());
    let mut lease = acquire(locks, &exclusive("0")).await.expect("it is free");
    for index in 1..64 {
        let add = under(&lease, exclusive(&index.to_string()));
        lease = acquire(locks, &add).await.expect("it is free");
    }
    let quota = (Code::ResourceExhausted, Some(ErrorReason::QuotaExceeded));
    let more = acquire(locks, &under(&lease, exclusive("64"))).await;
    assert_eq!(refused(more), quota);
    let entered = acquire(locks, &under(&lease, exclusive("7"))).await;
    assert_eq!(entered.expect("the holder").grants.len(), 64);
    release(locks, &lease).await.expect("all 64");
    acquire(locks, &exclusive("63")).await.expect("it is free");
    broker.stop().await;
}
