//! Queues of a RedLock store: the order within a broker, and releases that are notified across
//! brokers.

use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use leasehold_server::{
    lock::{
        ExpectedAttachment, INSPECT_ENTRIES_MAX, Lease, LeaseRef, LockError, LockFailure, LockKey,
        ReleaseScope, Ttl,
    },
    store::{Cancelled, Renewal, Store as _},
};
use leasehold_tests::{
    redlock::{
        broker::{RedlockBroker, immediate_call, waiting_call},
        deployment::RedlockDeployment,
    },
    scale::{print_figures, scaled_count},
    store_fixture::{lock_key, with_ttl},
};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout},
};

const WAIT: Duration = Duration::from_secs(20);
/// Maximum time from the end of a lease to the next grant. It is far below the pause of at most 1 s
/// after which a broker requests the lock in any case.
const NOTIFIED_WITHIN: Duration = Duration::from_millis(300);

fn lock(name: &str) -> LockKey {
    lock_key("default", name)
}

async fn wait(
    broker: &RedlockBroker,
    lock: &LockKey,
    wait: Duration,
) -> Result<Lease, LockFailure> {
    let mut call = waiting_call(lock, wait);
    call.ttl = Ttl::from_stored(2_000);
    broker.broker.acquire(&"caller".into(), call).await
}

async fn release_lease(broker: &RedlockBroker, lease: &Lease) {
    let held = &lease.locks[0];
    let reference = LeaseRef {
        lock: held.lock.clone(),
        lease_id: lease.lease_id,
        fencing_token: held.grant.fencing_token,
    };
    let released = broker
        .broker
        .release(&[reference], ReleaseScope::All, ExpectedAttachment::None)
        .await;
    released.expect("a quorum answers");
}

/// Waits until the broker's queue has `count` calls.
async fn wait_for_queue_length(broker: &RedlockBroker, lock: &LockKey, count: u32) {
    let joined = async {
        loop {
            let state = broker.store.get(lock).await.expect("a quorum answers");
            if state.is_some_and(|state| state.queue_length == count) {
                return;
            }
        }
    };
    timeout(WAIT, joined).await.expect("they join in time");
}

#[tokio::test]
async fn calls_of_one_broker_are_granted_in_the_order_in_which_they_came() {
    let nodes = RedlockDeployment::start(5).await;
    let broker = nodes.start_broker().await;
    let lock = lock("line");
    let first = broker
        .expect_granted(&with_ttl(immediate_call(&lock), 2_000))
        .await;
    let waiters = scaled_count(200, 20);
    let order = Mutex::new(Vec::new());
    let mut calls = FuturesUnordered::new();
    for number in 0..waiters {
        let (broker, lock, order) = (&broker, &lock, &order);
        calls.push(async move {
            let lease = wait(broker, lock, WAIT).await.expect("granted in its turn");
            order
                .lock()
                .await
                .push((number, lease.locks[0].grant.fencing_token));
            release_lease(broker, &lease).await;
        });
        // Each call starts when the previous call is queued.
        let length = u32::try_from(number + 1).expect("few");
        tokio::select! {
            () = wait_for_queue_length(broker, lock, length) => {}
            Some(()) = calls.next() => panic!("granted before the holder has released"),
        }
        let renewed = broker
            .store
            .renew(&first, Renewal::undelivered(ExpectedAttachment::None))
            .await;
        assert!(matches!(renewed, Ok(Ok(_))), "{renewed:?}");
    }
    let state = broker.store.get(&lock).await.expect("a quorum answers");
    let places: Vec<_> = state
        .expect("known")
        .waiters
        .iter()
        .map(|w| w.sequence)
        .collect();
    assert!(places.is_sorted() && places.len() == waiters.min(INSPECT_ENTRIES_MAX));
    let start = Instant::now();
    broker.expect_released(&first).await;
    calls.collect::<()>().await;
    let each = start.elapsed() / u32::try_from(waiters).expect("few");
    let order = order.into_inner();
    let numbers: Vec<_> = order.iter().map(|(number, _)| *number).collect();
    assert!(
        numbers.is_sorted() && numbers.len() == waiters,
        "{numbers:?}"
    );
    assert!(
        order.is_sorted_by(|one, next| one.1 < next.1),
        "tokens rise"
    );
    print_figures(&format!(
        "redlock: {waiters} calls of one broker granted in order, {each:?} each"
    ));
}

#[tokio::test]
async fn a_release_at_one_broker_is_received_by_another() {
    let nodes = RedlockDeployment::start(5).await;
    let [one, other] = [nodes.start_broker().await, nodes.start_broker().await];
    let lock = lock("notified");
    let (mut longest, rounds) = (Duration::ZERO, scaled_count(100, 10));
    for _ in 0..rounds {
        let held = one
            .expect_granted(&with_ttl(immediate_call(&lock), 2_000))
            .await;
        let release = async {
            wait_for_queue_length(&other, &lock, 1).await;
            // By now the nodes have registered the broker for a notification.
            sleep(Duration::from_millis(50)).await;
            let start = Instant::now();
            one.expect_released(&held).await;
            start
        };
        let (start, lease) = futures::join!(release, wait(&other, &lock, WAIT));
        longest = longest.max(start.elapsed());
        release_lease(&other, &lease.expect("granted")).await;
    }
    print_figures(&format!(
        "redlock: {rounds} releases heard at another broker, granted there within {longest:?}"
    ));
    assert!(longest < NOTIFIED_WITHIN, "{longest:?}");
}

#[tokio::test]
async fn after_an_expiry_the_first_waiter_is_granted_at_once() {
    let nodes = RedlockDeployment::start(5).await;
    let broker = nodes.start_broker().await;
    let lock = lock("expires");
    let held = Instant::now();
    broker.expect_granted(&immediate_call(&lock)).await;
    let next = wait(&broker, &lock, WAIT).await.expect("granted");
    let after = held.elapsed();
    print_figures(&format!(
        "redlock: granted {after:?} after a grant whose holder vanished"
    ));
    assert!(
        after >= Duration::from_millis(1_450)
            && after < Duration::from_millis(1_450) + NOTIFIED_WITHIN
    );
    release_lease(&broker, &next).await;
}

#[tokio::test]
async fn a_wait_that_is_over_leaves_nothing_behind() {
    let nodes = RedlockDeployment::start(5).await;
    let [one, other] = [nodes.start_broker().await, nodes.start_broker().await];
    let lock = lock("over");
    let held = one
        .expect_granted(&with_ttl(immediate_call(&lock), 2_000))
        .await;
    for _ in 0..scaled_count(50, 5) {
        let refused = wait(&other, &lock, Duration::from_millis(50)).await;
        let Err(LockFailure {
            error: LockError::WaitTimeout(contention),
            ..
        }) = refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!(contention.queue_length, 0);
        let renewed = one
            .store
            .renew(&held, Renewal::undelivered(ExpectedAttachment::None))
            .await;
        assert!(matches!(renewed, Ok(Ok(_))), "{renewed:?}");
    }
    one.expect_released(&held).await;
    let next = immediate_call(&lock);
    let lease = other.expect_granted(&next).await;
    let cancelled = other.store.cancel(&lock, next.request, next.attempt).await;
    assert_eq!(cancelled, Ok(Cancelled::Freed));
    one.expect_granted(&immediate_call(&lock)).await;
    assert!(lease.fencing_token.get() > 0);
}

#[tokio::test]
async fn calls_that_do_not_wait_never_pass_those_that_do() {
    let nodes = RedlockDeployment::start(5).await;
    let broker = nodes.start_broker().await;
    let lock = lock("barging");
    let held = broker
        .expect_granted(&with_ttl(immediate_call(&lock), 2_000))
        .await;
    let barges = async {
        wait_for_queue_length(&broker, &lock, 1).await;
        broker.expect_released(&held).await;
        let mut refused = 0;
        loop {
            match broker.acquire_timed(&immediate_call(&lock)).await.0 {
                Ok(leasehold_server::store::Acquired::Held(_)) => refused += 1,
                other => panic!("{other:?} before the waiter was granted"),
            }
            let state = broker.store.get(&lock).await.expect("a quorum answers");
            if state.is_some_and(|state| state.queue_length == 0) {
                return refused;
            }
        }
    };
    let (refused, lease) = futures::join!(barges, wait(&broker, &lock, WAIT));
    assert!(refused > 0);
    release_lease(&broker, &lease.expect("granted")).await;
}
