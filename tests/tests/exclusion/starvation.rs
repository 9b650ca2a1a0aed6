//! Readers that overlap without a gap do not starve a writer. The writer acquires the lock within
//! one reader's hold.

#![expect(clippy::disallowed_methods, reason = "readers are tasks of the test")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold_tests::{
    broker::deployment::Deployment,
    client::unary::{AcquireCall, Client},
    clock::boottime,
    scale::{print_figures, scaled_count},
};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

const LOCK: &str = "a-lock";
const READERS: usize = 16;
const HOLD: Duration = Duration::from_millis(400);
const TTL: Duration = Duration::from_secs(30);
const WAIT: Duration = Duration::from_secs(30);
/// Time for calls through two brokers and Redis on a busy machine.
const SLACK: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
struct Readers {
    /// Number of readers that hold the lock.
    inside: AtomicUsize,
    visits: AtomicUsize,
    /// Number of times that the last reader left: the moments at which an unfair lock would admit a
    /// writer.
    empty: AtomicUsize,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_gets_in_within_one_readers_hold() {
    let deployment = Deployment::start(2).await;
    let client = Client::new("reader", &deployment.addrs().repeat(2), 0);
    let readers = Arc::new(Readers::default());
    let tasks = (0..READERS).map(|index| {
        let client = client.with_name(&format!("reader-{index:02}"), index);
        AbortOnDropHandle::new(tokio::spawn(read(client, index, Arc::clone(&readers))))
    });
    let tasks: Vec<_> = tasks.collect();
    while readers.inside.load(Ordering::Relaxed) < READERS / 2 {
        sleep(HOLD / 8).await;
    }
    let seen = || [&readers.empty, &readers.visits].map(|count| count.load(Ordering::Relaxed));
    let [empty_before, visits_before] = seen();
    sleep(5 * HOLD).await;
    let [empty, visits] = seen();
    let (empty, visits) = (empty - empty_before, visits - visits_before);
    let writer = client.with_name("writer", 1);
    let (mut waits, mut beside) = (Vec::new(), 0);
    for _ in 0..scaled_count(50, 5) {
        let called_at = boottime();
        let call = AcquireCall::new(LOCK, TTL, WAIT);
        let held = writer.acquire(&call).await.expect("its turn");
        waits.push(boottime() - called_at);
        beside += readers.inside.load(Ordering::Relaxed);
        writer.release(&held).await.expect("the holder");
        sleep(HOLD).await;
    }
    drop(tasks);
    let longest = waits.iter().max().expect("some");
    print_figures(&format!(
        "starvation: readers={READERS} hold={}ms visits={} empty_moments_without_writer={empty} \
         writes={} longest_wait={}ms readers_beside_the_writer={beside}",
        HOLD.as_millis(),
        readers.visits.load(Ordering::Relaxed),
        waits.len(),
        longest.as_millis()
    ));
    // On a busy machine all readers may occasionally be between two holds at the same time.
    assert!(
        empty * 20 <= visits,
        "without a writer the readers overlap: {empty} of {visits} left no waiter behind"
    );
    assert_eq!(beside, 0, "a writer is alone");
    assert!(*longest < HOLD + SLACK, "{longest:?}");
}

/// Holds the lock repeatedly. The first hold is shifted, so that readers never leave together.
async fn read(client: Client, index: usize, readers: Arc<Readers>) {
    sleep(HOLD.mul_f64(index as f64 / READERS as f64)).await;
    loop {
        let call = AcquireCall::new(LOCK, TTL, WAIT).shared();
        let held = client.acquire(&call).await.expect("its turn");
        readers.inside.fetch_add(1, Ordering::Relaxed);
        readers.visits.fetch_add(1, Ordering::Relaxed);
        sleep(HOLD.mul_f64(0.5 + 0.5 * rand::random::<f64>())).await;
        if readers.inside.fetch_sub(1, Ordering::Relaxed) == 1 {
            readers.empty.fetch_add(1, Ordering::Relaxed);
        }
        client.release(&held).await.expect("the holder");
    }
}
