//! A hand-off that was cancelled before a repeat of its call joined the queue again. The repeat
//! receives the late hand-off message while it waits, and must ignore the hand-off.

use std::time::Duration;

use leasehold_server::{
    lock::{Lease, LockFailure},
    store::Cancelled,
};
use leasehold_tests::{
    broker::{
        delayed_store::DelayedStore,
        local_stream::{expect_released, start_acquire, unlimited_broker},
    },
    redlock::broker::waiting_call,
    store_fixture::lock_key,
};
use tokio::task::JoinError;

const WAIT: Duration = Duration::from_secs(30);

fn expect_lease(acquired: Result<Result<Lease, LockFailure>, JoinError>) -> Lease {
    acquired.expect("no panic").expect("a lease")
}

#[tokio::test]
async fn a_hand_off_that_was_rolled_back_is_ignored() {
    let store = DelayedStore::new();
    let broker = unlimited_broker(store.clone());
    let lock = lock_key("default", "late");

    let call = waiting_call(&lock, WAIT);
    let first = expect_lease(start_acquire(&broker, &waiting_call(&lock, WAIT)).await);
    let lost_waiter = start_acquire(&broker, &call);
    store.wait_for_queue_length(&lock, 1).await;
    let other = start_acquire(&broker, &waiting_call(&lock, WAIT));
    store.wait_for_queue_length(&lock, 2).await;
    // The client of `gone` disconnects and repeats the call, and the repeat reaches the store late.
    drop(lost_waiter);
    store.set_delaying(true);
    let repeat = start_acquire(&broker, &call);
    store.wait_for_delayed(1).await;
    expect_released(&broker, &first).await;
    let cancelled = store.wait_for_cancellation().await;
    assert_eq!(cancelled, Cancelled::Freed, "it was handed the lock");
    let other = expect_lease(other.await);
    store.set_delaying(false);
    store.wait_for_queue_length(&lock, 1).await;
    expect_released(&broker, &other).await;
    let repeat = expect_lease(repeat.await);
    let [other, repeat] = [&other, &repeat].map(|lease| lease.locks[0].grant.fencing_token);
    assert!(repeat > other, "{repeat:?} was taken back, {other:?} held");
}
