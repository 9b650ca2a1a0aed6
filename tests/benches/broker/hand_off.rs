//! One lock that is handed off along a full queue of waiters.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_proto::v1::inspection_service_client::InspectionServiceClient;
use leasehold_proto::v1::lock_service_client::LockServiceClient;
use leasehold_proto::v1::{AcquireRequest, ErrorReason, GetLockRequest, Lease};
use leasehold_tests::{client::unary::channel, status::error_reason};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tonic::transport::Channel;

use crate::grpc::{CHANNELS, acquire_request, named, release};
use crate::pairs::Sample;

/// Results of one round.
pub(crate) struct HandOffQueue {
    /// While every former holder enqueues again: each hand-off runs beside an acquire.
    pub(crate) full: Sample,
    /// While the queue is drained: hand-offs alone.
    pub(crate) emptying: Sample,
}

/// Number of waiters in the queue.
pub(crate) const WAITERS: usize = 1_000;
const WARM_UP: Duration = Duration::from_millis(500);
const MEASURED: Duration = Duration::from_secs(2);
/// Time until the last waiters that enqueue again are in the queue.
const SETTLE: Duration = Duration::from_millis(50);
const WAIT_SECONDS: i64 = 120;
/// Pause before a request is repeated that was rejected because the broker was overloaded.
pub(crate) const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// State that all waiters of a round share.
struct Round {
    lock: String,
    start: Instant,
    end: Instant,
    /// Time at which the last release was sent, in nanoseconds after `start`. Only the holder
    /// writes it, so the next holder reads the time of the release that preceded its grant.
    released_at: AtomicU64,
}

/// Time at which a grant was received, and its delay since the release was sent.
type HandOff = (Instant, Duration);

/// All hand-offs of one round.
pub(crate) struct HandOffLatencies {
    hand_offs: Vec<HandOff>,
    begin: Instant,
    end: Instant,
}

impl HandOffLatencies {
    /// Returns the hand-offs while every former holder enqueued again.
    pub(crate) fn full(&self) -> Sample {
        within(&self.hand_offs, self.begin, self.end)
    }

    /// Returns the hand-offs while the queue was drained. The queue must be long.
    fn emptying(&self) -> Sample {
        let last = self.hand_offs.iter().map(|(at, _)| *at).max();
        let last = last.expect("the queue moves");
        within(&self.hand_offs, self.end + SETTLE, last)
    }
}

fn within(hand_offs: &[HandOff], from: Instant, to: Instant) -> Sample {
    let those = hand_offs.iter().filter(|(at, _)| (from..to).contains(at));
    Sample::of(those.map(|(_, latency)| *latency).collect(), to - from)
}

/// A caller that enqueues again after each hold.
pub(crate) trait Waiter: Send + 'static {
    /// Acquires the lock, waiting in the queue.
    fn acquire(&mut self, lock: &str) -> impl Future<Output = ()> + Send;
    /// Releases the lock that the waiter holds.
    fn release(&mut self) -> impl Future<Output = ()> + Send;
}

/// A waiter that uses unary calls.
pub(crate) struct Unary {
    wait: LockServiceClient<Channel>,
    give_back: LockServiceClient<Channel>,
    held: Option<Lease>,
}

impl Waiter for Unary {
    async fn acquire(&mut self, lock: &str) {
        self.held = loop {
            match self.wait.acquire(waiting_request(lock)).await {
                Ok(response) => break response.into_inner().lease,
                Err(status) if error_reason(&status) == Some(ErrorReason::Overloaded) => {
                    sleep(AGAIN_AFTER).await;
                }
                Err(status) => panic!("the queue moves on, but {status:?}"),
            }
        };
    }

    async fn release(&mut self) {
        let lease = self.held.take().expect("OK means held");
        release(&mut self.give_back, lease).await;
    }
}

/// Runs one round of [`WAITERS`] at all of `brokers`.
pub(crate) async fn run(brokers: &[SocketAddr], round: usize) -> HandOffQueue {
    let turns = unary(brokers, WAITERS, format!("bench/hand-off/{round}")).await;
    HandOffQueue {
        full: turns.full(),
        emptying: turns.emptying(),
    }
}

/// Runs one round of `waiters` that use unary calls.
pub(crate) async fn unary(
    brokers: &[SocketAddr],
    waiters: usize,
    lock: String,
) -> HandOffLatencies {
    let mut waiters = unary_waiters(brokers, CHANNELS, waiters + 1);
    let first = waiters.pop().expect("one more than wait");
    run_round(channel(brokers[0]), lock, first, waiters).await
}

/// Returns `waiters` that share `connections` connections to each broker.
pub(crate) fn unary_waiters(
    brokers: &[SocketAddr],
    connections: usize,
    waiters: usize,
) -> Vec<Unary> {
    let waits: Vec<_> = brokers
        .iter()
        .flat_map(|addr| (0..connections).map(|_| channel(*addr)))
        .collect();
    // Releases use other connections, so that waiting calls cannot delay them.
    let releases: Vec<_> = brokers.iter().map(|addr| channel(*addr)).collect();
    let waiter = |at: usize| Unary {
        wait: LockServiceClient::new(waits[at % waits.len()].clone()),
        give_back: LockServiceClient::new(releases[at % releases.len()].clone()),
        held: None,
    };
    (0..waiters).map(waiter).collect()
}

/// Fills the queue behind `first`, lets the lock be handed off, and measures the time from the
/// sending of a release to the next holder's receipt of its grant.
pub(crate) async fn run_round<W: Waiter>(
    inspection: Channel,
    lock: String,
    mut first: W,
    waiters: Vec<W>,
) -> HandOffLatencies {
    first.acquire(&lock).await;
    let (go, gone) = tokio::sync::watch::channel(None::<Arc<Round>>);
    let length = waiters.len();
    let mut tasks = JoinSet::new();
    for waiter in waiters {
        tasks.spawn(one_waiter(waiter, lock.clone(), gone.clone()));
    }
    wait_until_queue_is_full(inspection, &lock, length).await;
    let start = Instant::now();
    let begin = start + WARM_UP;
    let end = begin + MEASURED;
    let released_at = AtomicU64::new(0);
    let round = Round {
        lock,
        start,
        end,
        released_at,
    };
    go.send_replace(Some(Arc::new(round)));
    first.release().await;
    let mut hand_offs: Vec<HandOff> = Vec::new();
    while let Some(of_one) = tasks.join_next().await {
        hand_offs.extend(of_one.expect("a waiter ends"));
    }
    HandOffLatencies {
        hand_offs,
        begin,
        end,
    }
}

/// Enqueues again after each hold until the round has ended, after which the queue is drained.
async fn one_waiter<W: Waiter>(
    mut waiter: W,
    lock: String,
    gone: tokio::sync::watch::Receiver<Option<Arc<Round>>>,
) -> Vec<HandOff> {
    let mut hand_offs = Vec::new();
    waiter.acquire(&lock).await;
    let round = gone
        .borrow()
        .clone()
        .expect("no caller is granted before the round begins");
    loop {
        let granted = Instant::now();
        let released_at = Duration::from_nanos(round.released_at.load(Ordering::Acquire));
        hand_offs.push((granted, granted - (round.start + released_at)));
        let now = u64::try_from(round.start.elapsed().as_nanos()).expect("a short run");
        round.released_at.store(now, Ordering::Release);
        waiter.release().await;
        if granted >= round.end {
            return hand_offs;
        }
        waiter.acquire(&round.lock).await;
    }
}

/// Returns an acquire that waits in the queue of `lock`.
pub(crate) fn waiting_request(lock: &str) -> AcquireRequest {
    let wait = prost_types::Duration {
        seconds: WAIT_SECONDS,
        nanos: 0,
    };
    AcquireRequest {
        wait_timeout: Some(wait),
        ..acquire_request(named(lock))
    }
}

/// Waits until `waiters` calls wait for the lock.
pub(crate) async fn wait_until_queue_is_full(channel: Channel, lock: &str, waiters: usize) {
    let mut inspection = InspectionServiceClient::new(channel);
    loop {
        let request = GetLockRequest {
            namespace: String::new(),
            name: lock.to_owned(),
        };
        let response = inspection
            .get_lock(request)
            .await
            .expect("the lock is held");
        let lock = response.into_inner().lock.expect("a lock");
        if usize::try_from(lock.queue_length).is_ok_and(|length| length >= waiters) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
