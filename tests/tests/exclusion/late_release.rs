//! A release whose reply arrives after the lease was granted the lock again.

use std::time::Duration;

use leasehold_server::{
    broker::lease_stream::{StreamCommand, StreamEvent},
    lock::{AcquireCall, Lease, LockKey, PresentedLease},
};
use leasehold_tests::{
    broker::{
        delayed_store::DelayedStore,
        local_stream::{LocalStream, expect_released, references, start_acquire, unlimited_broker},
    },
    redlock::broker::waiting_call,
    store_fixture::lock_key,
};

const WAIT: Duration = Duration::from_secs(30);

/// Returns a call that adds the lock to the lease.
fn adding_call(lease: &Lease, lock: &LockKey) -> AcquireCall {
    let call = waiting_call(lock, WAIT);
    AcquireCall {
        under: Some(PresentedLease {
            lease_id: lease.lease_id,
            lease_token: lease.lease_token.clone(),
            ttl: call.ttl,
            locks: references(lease),
        }),
        ..call
    }
}

#[tokio::test]
async fn a_late_reply_to_a_release_leaves_a_newer_grant_on_the_stream() {
    let store = DelayedStore::new();
    let broker = unlimited_broker(store.clone());
    let [base, lock] = ["base", "added"].map(|name| lock_key("default", name));
    let mut stream = LocalStream::open(&broker);
    stream.acquire(1, waiting_call(&base, WAIT));
    let lease = stream.granted(1).await;

    let other = start_acquire(&broker, &waiting_call(&lock, WAIT)).await;
    let other = other.expect("no panic").expect("it is free");
    let calls = [adding_call(&lease, &lock), adding_call(&lease, &lock)];
    stream.acquire(2, calls[0].clone());
    store.wait_for_queue_length(&lock, 1).await;
    stream.acquire(3, calls[1].clone());
    store.wait_for_queue_length(&lock, 2).await;
    // The grant to the first call makes the second one send its acquire again. This command is
    // delayed until the first call's hold is released.
    store.set_delaying(true);
    expect_released(&broker, &other).await;
    let first = stream.granted(2).await;
    store.wait_for_delayed(1).await;
    store.set_delaying_released(true);
    stream.send(StreamCommand::Release {
        call_id: 4,
        lease_id: lease.lease_id,
        lock: Some(lock.clone()),
        entry: Some(calls[0].request_id.hash()),
    });
    store.wait_for_queue_length(&lock, 0).await;
    store.set_delaying(false);
    let second = stream.granted(3).await;
    let [first, second] = [&first, &second].map(|lease| {
        let held = lease.locks.iter().find(|held| held.lock == lock);
        held.expect("it was added").grant.fencing_token
    });
    assert!(second > first, "the lock was released in between");

    store.set_delaying_released(false);
    match stream.event().await {
        Some(StreamEvent::Released { call_id, result }) => {
            assert_eq!((call_id, result.hold_count), (4, 0));
        }
        event => panic!("{event:?}"),
    }
    stream.send(StreamCommand::Heartbeat { sequence: 1 });
    match stream.event().await {
        Some(StreamEvent::Acknowledged { leases, .. }) => {
            assert_eq!(leases[0].locks, 2, "both locks are renewed");
        }
        event => panic!("{event:?}"),
    }
}
