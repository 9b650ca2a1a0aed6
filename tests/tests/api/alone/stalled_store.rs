//! A store that stops: every call is told so in time, and nobody loses a place in line.

use std::time::Duration;

use leasehold_proto::v1::{ErrorReason, lock_service_client::LockServiceClient};
use leasehold_tests::{
    client::{Client, channel},
    deployment::Deployment,
};
use tokio::time::Instant;
use tonic::Code;

use crate::refusals::{LOCK, check, in_line, now, refused};

/// What a caller waits for a store that does not answer.
const PROMPT: Duration = Duration::from_secs(1);
/// The broker answers in time, and the answer takes its time to get here.
const SLACK: Duration = Duration::from_millis(250);

/// Runs alone: it measures how soon calls are refused.
#[tokio::test]
async fn a_stalled_store_refuses_within_a_second_and_keeps_the_line() {
    let deployment = Deployment::start(1).await;
    let client = Client::new("worker-1", &deployment.addrs(), 0);
    let held = client.acquire_at(0, &now(LOCK)).await.expect("it is free");
    let waiter = client.open_at(0, &in_line());
    client.queued_at(0, LOCK, 1).await;
    deployment.redis.process().pause().await;
    let unavailable = (
        Code::Unavailable,
        Some(ErrorReason::StoreUnavailable),
        Some(PROMPT),
    );
    // The first calls meet a connection that seems to live, the later ones none.
    for _ in 0..4 {
        let started = Instant::now();
        let (no_wait, waits) = (now("another"), in_line());
        let (acquire, wait, renew, release, look) = tokio::join!(
            client.acquire_at(0, &no_wait),
            client.acquire_at(0, &waits),
            client.renew_at(0, &held),
            client.release_at(0, &held),
            client.get_lock_at(0, LOCK),
        );
        let took = started.elapsed();
        assert_eq!(refused(acquire), unavailable);
        assert_eq!(refused(wait), unavailable);
        assert_eq!(refused(renew), unavailable);
        assert_eq!(refused(release), unavailable);
        assert_eq!(refused(look), unavailable);
        assert!(took <= PROMPT + SLACK, "{took:?}");
    }
    assert!(!waiter.is_finished(), "a waiter stays in line");
    deployment.redis.process().resume();
    let mut locks = LockServiceClient::new(channel(deployment.addrs()[0]));
    let late = loop {
        let any_grant = check("another", 1);
        let refusal = refused(locks.check_fencing_token(any_grant).await);
        if refusal != unavailable {
            break refusal;
        }
    };
    let never_granted = (Code::NotFound, Some(ErrorReason::LeaseNotFound), None);
    assert_eq!(late, never_granted, "what came late did nothing");
    // The first release may have been read by the store when it went on.
    client.release(&held).await.expect("the holder");
    waiter.await.expect("no panic").expect("its turn");
}
