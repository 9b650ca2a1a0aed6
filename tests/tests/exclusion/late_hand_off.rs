//! A hand-off that was cancelled before a repeat of its call joined the queue again. The repeat
//! receives the late hand-off message while it waits, and must ignore the hand-off.

#![expect(
    clippy::disallowed_methods,
    reason = "tests run tasks beside the product, which ends them with its own tracker"
)]

use std::{sync::Arc, time::Duration};

use leasehold_server::{
    lock::{AcquireCall, ExpectedAttachment, Lease, LockFailure, ReleaseScope},
    store::Cancelled,
};
use leasehold_tests::{
    broker::{
        delayed_store::DelayedStore,
        local_stream::{references, unlimited_broker},
    },
    redlock::broker::waiting_call,
    store_fixture::lock_key,
};
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;

const WAIT: Duration = Duration::from_secs(30);

fn expect_lease(acquired: Result<Result<Lease, LockFailure>, JoinError>) -> Lease {
    acquired.expect("no panic").expect("a lease")
}

#[tokio::test]
async fn a_hand_off_that_was_rolled_back_is_ignored() {
    let store = DelayedStore::new();
    let broker = unlimited_broker(store.clone());
    let (lock, caller) = (lock_key("default", "late"), Arc::<str>::from("caller"));
    let begin = |call: &AcquireCall| {
        let (broker, caller, call) = (broker.clone(), Arc::clone(&caller), call.clone());
        AbortOnDropHandle::new(tokio::spawn(
            async move { broker.acquire(&caller, call).await },
        ))
    };
    let release = async |lease: &Lease| {
        let released = broker
            .release(
                &references(lease),
                ReleaseScope::All,
                ExpectedAttachment::Any,
            )
            .await;
        released.expect("it is held");
    };

    let call = waiting_call(&lock, WAIT);
    let first = expect_lease(begin(&waiting_call(&lock, WAIT)).await);
    let lost_waiter = begin(&call);
    store.wait_for_queue_length(&lock, 1).await;
    let other = begin(&waiting_call(&lock, WAIT));
    store.wait_for_queue_length(&lock, 2).await;
    // The client of `gone` disconnects and repeats the call, and the repeat reaches the store late.
    drop(lost_waiter);
    store.set_delaying(true);
    let repeat = begin(&call);
    store.wait_for_delayed(1).await;
    release(&first).await;
    let cancelled = store.wait_for_cancellation().await;
    assert_eq!(cancelled, Cancelled::Freed, "it was handed the lock");
    let other = expect_lease(other.await);
    store.set_delaying(false);
    store.wait_for_queue_length(&lock, 1).await;
    release(&other).await;
    let repeat = expect_lease(repeat.await);
    let [other, repeat] = [&other, &repeat].map(|lease| lease.locks[0].grant.fencing_token);
    assert!(repeat > other, "{repeat:?} was taken back, {other:?} held");
}
