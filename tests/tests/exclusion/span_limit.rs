//! Waiting calls of a broker whose store limits the spans of leases.

use std::time::Duration;

use leasehold_server::{
    lock::{AcquireCall, Lease, LockError, LockFailure, Ttl},
    store::{
        Store as _,
        memory::{Memory, context::SpanLimit},
    },
};
use leasehold_tests::{
    broker::{
        delayed_store::DelayedStore,
        local_stream::{expect_released, start_acquire, unlimited_broker},
    },
    redlock::broker::waiting_call,
    store_fixture::lock_key,
};

const WAIT: Duration = Duration::from_secs(30);

/// Lets `waiter` wait for a held lock, limits the spans, and releases the lock. Returns the result of
/// the waiter, which must have left the queue.
async fn wait_while_spans_are_limited(waiter: AcquireCall) -> Result<Lease, LockFailure> {
    let memory = Memory::new(Duration::ZERO);
    let store = DelayedStore::connect(&memory);
    let broker = unlimited_broker(store.clone());
    let lock = waiter.targets[0].lock.clone();
    let held = start_acquire(&broker, &waiting_call(&lock, WAIT)).await;
    let held = held.expect("no panic").expect("the lock is free");
    let waiting = start_acquire(&broker, &waiter);
    store.wait_for_queue_length(&lock, 1).await;
    memory.limit_spans(SpanLimit::Min);
    expect_released(&broker, &held).await;
    let result = waiting.await.expect("no panic");
    let state = store.get(&lock).await.expect("it answers");
    assert_eq!(state.map(|state| state.queue_length), Some(0));
    result
}

#[tokio::test]
async fn a_hand_off_reports_the_validity_to_which_the_store_has_cut_it() {
    let mut call = waiting_call(&lock_key("default", "spans"), WAIT);
    call.ttl = Ttl::from_stored(60_000);
    let result = wait_while_spans_are_limited(call).await;
    assert_eq!(result.expect("a lease").ttl(), Ttl::from_stored(10_000));
}

#[tokio::test]
async fn a_waiting_call_whose_lock_delay_no_longer_fits_fails_and_leaves_the_queue() {
    let mut call = waiting_call(&lock_key("default", "spans"), WAIT);
    call.options.lock_delay_ms = 11_000;
    let result = wait_while_spans_are_limited(call).await;
    let error = result.expect_err("no lease").error;
    assert_eq!(
        error,
        LockError::StoreRecovering {
            retry_after_ms: 1_000,
            recovery: None,
        }
    );
}
