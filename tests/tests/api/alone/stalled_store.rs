//! A stopped store. Every call fails in time, and no waiter loses its queue position.

use std::time::Duration;

use leasehold_proto::v1::{ErrorReason, lock_service_client::LockServiceClient};
use leasehold_tests::{
    broker::deployment::Deployment,
    client::unary::{Client, channel},
};
use tokio::time::Instant;
use tonic::Code;

use crate::refusals::{LOCK, check, immediate_call, refused, waiting_call};

/// Time that a caller waits for a store that does not respond.
const PROMPT: Duration = Duration::from_secs(1);
/// Time for the response to travel, which the broker's time limit does not include.
const SLACK: Duration = Duration::from_millis(250);

/// Runs alone: it measures how soon calls are refused.
#[tokio::test]
async fn a_stalled_store_rejects_within_a_second_and_keeps_the_queue() {
    let deployment = Deployment::start(1).await;
    let client = Client::new("worker-1", &deployment.addrs(), 0);
    let held = client
        .acquire_at(0, &immediate_call(LOCK))
        .await
        .expect("it is free");
    let waiter = client.start_acquire_at(0, &waiting_call());
    client.wait_for_queue_length_at(0, LOCK, 1).await;
    deployment.redis.process().pause().await;
    let unavailable = (
        Code::Unavailable,
        Some(ErrorReason::StoreUnavailable),
        Some(PROMPT),
    );
    // The first calls use a connection that seems to be open, the later calls find no connection.
    for _ in 0..4 {
        let started = Instant::now();
        let (no_wait, waits) = (immediate_call("another"), waiting_call());
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
    assert!(!waiter.is_finished(), "a waiter stays queued");
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
    // The store may have processed the first release after it was resumed.
    client.release(&held).await.expect("the holder");
    waiter.await.expect("no panic").expect("its turn");
}
