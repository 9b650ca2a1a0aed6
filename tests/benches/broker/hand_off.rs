//! One lock that goes from hand to hand along a full line of waiters.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_proto::v1::inspection_service_client::InspectionServiceClient;
use leasehold_proto::v1::lock_service_client::LockServiceClient;
use leasehold_proto::v1::{GetLockRequest, Lease};
use leasehold_tests::client::channel;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::grpc::{CHANNELS, acquire_request, named, release};
use crate::pairs::Sample;

/// What one round measured.
pub(crate) struct Line {
    /// While everybody who had a turn joined again: each hand-off beside an Acquire.
    pub(crate) full: Sample,
    /// While the line ran empty: hand-offs alone.
    pub(crate) emptying: Sample,
}

/// How many stand in line.
pub(crate) const WAITERS: usize = 1_000;
const WARM_UP: Duration = Duration::from_millis(500);
const MEASURED: Duration = Duration::from_secs(2);
/// Until the last who joined again stand in line.
const SETTLE: Duration = Duration::from_millis(50);
const WAIT_SECONDS: i64 = 120;

/// What all waiters of a round share.
struct Round {
    lock: String,
    start: Instant,
    end: Instant,
    /// When the last release was sent, in nanoseconds after `start`. Only the holder writes it,
    /// so whoever is granted the lock next finds the release that made room.
    released_at: AtomicU64,
}

/// One grant: when it was received, and how long after the sending of the release.
type HandOff = (Instant, Duration);

/// Fills the line, lets the lock go round, and tells the time from the sending of a release to the
/// next holder's receipt of its grant.
pub(crate) async fn run(brokers: &[SocketAddr], round: usize) -> Line {
    let lock = format!("bench/hand-off/{round}");
    let waits: Vec<_> = brokers
        .iter()
        .flat_map(|addr| (0..CHANNELS).map(|_| channel(*addr)))
        .collect();
    // Releases go by connections of their own, so that no wait can hold them up.
    let releases: Vec<_> = brokers.iter().map(|addr| channel(*addr)).collect();
    let mut locks = LockServiceClient::new(releases[0].clone());
    let first = acquire(&mut locks, &lock).await;
    let (go, gone) = tokio::sync::watch::channel(None::<Arc<Round>>);
    let mut tasks = JoinSet::new();
    for at in 0..WAITERS {
        let wait = LockServiceClient::new(waits[at % waits.len()].clone());
        let release = LockServiceClient::new(releases[at % releases.len()].clone());
        tasks.spawn(one_waiter(wait, release, lock.clone(), gone.clone()));
    }
    line_is_full(releases[0].clone(), &lock).await;
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
    release(&mut locks, first).await;
    let mut hand_offs: Vec<HandOff> = Vec::new();
    while let Some(of_one) = tasks.join_next().await {
        hand_offs.extend(of_one.expect("a waiter ends"));
    }
    let last = hand_offs
        .iter()
        .map(|(at, _)| *at)
        .max()
        .expect("the line moves");
    Line {
        full: within(&hand_offs, begin, end),
        emptying: within(&hand_offs, end + SETTLE, last),
    }
}

fn within(hand_offs: &[HandOff], from: Instant, to: Instant) -> Sample {
    let those = hand_offs.iter().filter(|(at, _)| (from..to).contains(at));
    Sample::of(those.map(|(_, latency)| *latency).collect(), to - from)
}

/// Joins the line again after each turn, until the round is over: then the line runs empty.
async fn one_waiter(
    mut wait: LockServiceClient<Channel>,
    mut give_back: LockServiceClient<Channel>,
    lock: String,
    gone: tokio::sync::watch::Receiver<Option<Arc<Round>>>,
) -> Vec<HandOff> {
    let mut hand_offs = Vec::new();
    let mut lease = acquire(&mut wait, &lock).await;
    let round = gone
        .borrow()
        .clone()
        .expect("nobody is granted before the round begins");
    loop {
        let granted = Instant::now();
        let released_at = Duration::from_nanos(round.released_at.load(Ordering::Acquire));
        hand_offs.push((granted, granted - (round.start + released_at)));
        let now = u64::try_from(round.start.elapsed().as_nanos()).expect("a short run");
        round.released_at.store(now, Ordering::Release);
        release(&mut give_back, lease).await;
        if granted >= round.end {
            return hand_offs;
        }
        lease = acquire(&mut wait, &round.lock).await;
    }
}

async fn acquire(locks: &mut LockServiceClient<Channel>, lock: &str) -> Lease {
    let mut request = acquire_request(named(lock));
    request.wait_timeout = Some(prost_types::Duration {
        seconds: WAIT_SECONDS,
        nanos: 0,
    });
    let response = locks.acquire(request).await.expect("the line moves on");
    response.into_inner().lease.expect("OK means held")
}

async fn line_is_full(channel: Channel, lock: &str) {
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
        if usize::try_from(lock.queue_length).is_ok_and(|length| length >= WAITERS) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
