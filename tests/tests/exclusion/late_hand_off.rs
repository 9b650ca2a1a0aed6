//! A hand-off that was taken back before a repeat of its call joined the line again is heard of by the
//! repeat, which has been there all the time: it must not take itself for the holder.

#![expect(
    clippy::disallowed_methods,
    reason = "tests run tasks beside the product, which ends them with its own tracker"
)]

use std::{sync::Arc, time::Duration};

use leasehold_server::{
    broker::{Broker, stream::StreamAge},
    lock::{AcquireCall, Failed, Lease, LeaseRef, LockKey, Release, Via},
    quotas::Quotas,
    store::{Cancelled, Store},
};
use leasehold_tests::{
    late_store::LateStore,
    redlock_broker::{unlimited, waiting},
    world::lock_named,
};
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;

const WAIT: Duration = Duration::from_secs(30);
const DAY: Duration = Duration::from_secs(86_400);

async fn in_line(store: &LateStore, lock: &LockKey, length: u32) {
    loop {
        let state = store.get(lock).await.expect("it answers");
        if state.is_some_and(|state| state.queue_length == length) {
            return;
        }
        tokio::task::yield_now().await;
    }
}

fn got(acquired: Result<Result<Lease, Failed>, JoinError>) -> Lease {
    acquired.expect("no panic").expect("a lease")
}

/// The only lock of a lease.
fn reference(lock: &LockKey, lease: &Lease) -> LeaseRef {
    LeaseRef {
        lock: lock.clone(),
        lease_id: lease.lease_id,
        fencing_token: lease.locks[0].grant.fencing_token,
    }
}

#[tokio::test]
async fn a_hand_off_that_was_taken_back_is_nobodys() {
    let store = LateStore::new();
    let age = StreamAge {
        most: DAY,
        grace: DAY,
    };
    let quotas = Quotas::new(unlimited);
    let broker = Broker::new(Arc::clone(&store) as Arc<dyn Store>, quotas, age);
    let (lock, caller) = (lock_named("default", "late"), Arc::<str>::from("caller"));
    let begin = |call: &AcquireCall| {
        let (broker, caller, call) = (broker.clone(), Arc::clone(&caller), call.clone());
        AbortOnDropHandle::new(tokio::spawn(
            async move { broker.acquire(&caller, call).await },
        ))
    };
    let release = async |lease: &Lease| {
        let lease = [reference(&lock, lease)];
        let released = broker.release(&lease, Release::All, Via::Anywhere).await;
        released.expect("it is held");
    };

    let call = waiting(&lock, WAIT);
    let first = got(begin(&waiting(&lock, WAIT)).await);
    let gone = begin(&call);
    in_line(&store, &lock, 1).await;
    let other = begin(&waiting(&lock, WAIT));
    in_line(&store, &lock, 2).await;
    // Its client goes away and comes back, and what it sends then is late.
    drop(gone);
    store.hold_up(true);
    let repeat = begin(&call);
    store.held_up(1).await;
    release(&first).await;
    let cancelled = store.cancelled().await;
    assert_eq!(cancelled, Cancelled::Freed, "it was handed the lock");
    let other = got(other.await);
    store.hold_up(false);
    in_line(&store, &lock, 1).await;
    release(&other).await;
    let repeat = got(repeat.await);
    let [other, repeat] = [&other, &repeat].map(|lease| reference(&lock, lease).fencing_token);
    assert!(repeat > other, "{repeat:?} was taken back, {other:?} held");
}
