//! Strict FIFO order over several brokers, with waiters that cancel and waiters that repeat their
//! call.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::time::Duration;

use futures::future::{join_all, select_ok};
use leasehold_tests::broker::deployment::Deployment;
use leasehold_tests::client::unary::{AcquireCall, AcquireHandle, Client};
use leasehold_tests::clock::boottime;
use leasehold_tests::scale::print_figures;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;

const LOCK: &str = "fifo";
const WAITERS: usize = 200;
const TTL: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(120);
const QUEUE_LIMIT: Duration = Duration::from_secs(20);
const CONNECTIONS: usize = 4;

struct Waiter {
    index: usize,
    client: Client,
    call: AcquireCall,
    open: Vec<AcquireHandle>,
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_in_queue_order_over_two_brokers() {
    let deployment = Deployment::start(2).await;
    // Even endpoints belong to the first broker, odd endpoints to the second.
    let endpoints = deployment.addrs().repeat(CONNECTIONS);
    let client = Client::new("holder", &endpoints, 0);
    let held = client
        .acquire(&AcquireCall::new(LOCK, TTL, Duration::ZERO))
        .await
        .unwrap();
    let mut waiters = queue_waiters(&client).await;
    let repeats = repeat_some(&client, &mut waiters).await;
    // A broker rolls back a dropped call after a short delay. Once the cancelled calls have left
    // the queue, the rollbacks of the calls that were dropped earlier are complete, too.
    let (cancelled, waiters): (Vec<_>, Vec<_>) = waiters
        .into_iter()
        .partition(|waiter| waiter.index % 10 == 3);
    cancelled
        .iter()
        .flat_map(|waiter| &waiter.open)
        .for_each(AbortOnDropHandle::abort);
    wait_for_queue(&client, waiters.len()).await;
    check_shown_order(&client, &waiters).await;
    client.release(&held).await.unwrap();
    let tokens = join_all(waiters.into_iter().map(granted)).await;
    let inversions = tokens.windows(2).filter(|pair| pair[0] >= pair[1]).count();
    print_figures(&format!(
        "fifo: waiters={WAITERS} brokers=2 cancelled={} repeated={repeats} granted={} \
         inversions={inversions}",
        cancelled.len(),
        tokens.len()
    ));
    assert_eq!(
        (cancelled.len(), repeats, tokens.len(), inversions),
        (20, 20, 180, 0)
    );
    wait_for_queue(&client, 0).await;
}

async fn queue_waiters(client: &Client) -> Vec<Waiter> {
    let mut waiters = Vec::new();
    for index in 0..WAITERS {
        let client = client.with_name(&owner(index), index);
        let call = AcquireCall::new(LOCK, TTL, WAIT);
        let open = vec![client.start_acquire_at(index, &call)];
        waiters.push(Waiter {
            index,
            client,
            call,
            open,
        });
        wait_for_queue(&waiters[0].client, index + 1).await;
    }
    waiters
}

/// Repeats the calls of a tenth of the waiters at the other broker while their first calls are
/// open. Half of these waiters then drop the first call.
async fn repeat_some(client: &Client, waiters: &mut [Waiter]) -> usize {
    let mut repeats = 0;
    for waiter in waiters.iter_mut().filter(|waiter| waiter.index % 10 == 7) {
        waiter.open.push(
            waiter
                .client
                .start_acquire_at(waiter.index + 1, &waiter.call),
        );
        wait_for_store(client, waiter.index + 1).await;
        if repeats % 2 == 0 {
            drop(waiter.open.remove(0));
            wait_for_store(client, waiter.index).await;
        }
        repeats += 1;
    }
    repeats
}

/// Waits until the store has received everything that was sent on this endpoint before. Consecutive
/// calls on the same connection take the same path.
async fn wait_for_store(client: &Client, at: usize) {
    for _ in 0..3 {
        let call = AcquireCall::new("fifo/settle", TTL, Duration::ZERO);
        let held = client.acquire_at(at, &call).await.unwrap();
        client.release_at(at, &held).await.unwrap();
    }
}

async fn check_shown_order(client: &Client, waiters: &[Waiter]) {
    let lock = client
        .get_lock(LOCK)
        .await
        .unwrap()
        .expect("the lock is held");
    let shown = lock
        .waiters
        .into_iter()
        .map(|waiter| waiter.owner.unwrap_or_default().id);
    let shown: Vec<_> = shown.collect();
    let expected: Vec<_> = waiters.iter().map(|waiter| owner(waiter.index)).collect();
    assert_eq!(usize::try_from(lock.queue_length).unwrap(), waiters.len());
    assert_eq!(
        shown,
        expected[..shown.len()],
        "GetLock shows the queue in order"
    );
}

async fn granted(waiter: Waiter) -> i64 {
    let calls = waiter.open.into_iter().map(|call| {
        Box::pin(async move {
            call.await
                .unwrap_or_else(|_| Err(Status::cancelled("dropped")))
        })
    });
    let (held, others) = select_ok(calls)
        .await
        .unwrap_or_else(|status| panic!("waiter {} was not granted: {status}", waiter.index));
    waiter.client.release(&held).await.unwrap();
    drop(others);
    held.token()
}

async fn wait_for_queue(client: &Client, length: usize) {
    let give_up = boottime() + QUEUE_LIMIT;
    loop {
        let lock = client.get_lock(LOCK).await.unwrap();
        let queued = usize::try_from(lock.map_or(0, |lock| lock.queue_length)).unwrap();
        if queued == length {
            return;
        }
        assert!(boottime() < give_up, "{queued} wait, {length} should");
    }
}

fn owner(index: usize) -> String {
    format!("waiter-{index:03}")
}
