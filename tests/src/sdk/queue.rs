//! Queues of calls of the Rust client for held locks, with the order of joining and the order of
//! grants.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use leasehold::{Client, Error, Guard};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use crate::{clock::boottime, load::store_expiry::format_spread, scale::print_figures};

const JOIN_LIMIT: Duration = Duration::from_secs(20);
const GRANT_LIMIT: Duration = Duration::from_secs(60);
/// Maximum wait of one call.
const WAIT: Duration = Duration::from_secs(3_600);

/// Result of a waiter's call, with the position at which the waiter joined, counted from 0.
type WaiterGrant = (usize, Result<Guard, Error>);

#[derive(Debug, Clone)]
pub struct Waiter {
    /// Index of the waiter's client.
    pub client_index: usize,
    position_updates: Arc<AtomicUsize>,
    is_granted: Arc<AtomicBool>,
}

impl Waiter {
    /// Returns the number of queue position updates that the waiter has received, or `None` once it
    /// has the lock.
    #[must_use]
    pub fn position_updates(&self) -> Option<usize> {
        let is_waiting = !self.is_granted.load(Ordering::SeqCst);
        is_waiting.then(|| self.position_updates.load(Ordering::SeqCst))
    }
}

/// A lock with its holder and its queue of calls.
#[derive(Debug)]
pub struct HeldQueue {
    lock: String,
    holder: Guard,
    ttl: Duration,
    waiters: Vec<AbortOnDropHandle<()>>,
    grants: mpsc::UnboundedReceiver<WaiterGrant>,
    grant_sender: mpsc::UnboundedSender<WaiterGrant>,
}

/// Grants of the waiters in a queue.
#[derive(Debug, Default)]
pub struct QueueGrants {
    /// Positions at which the waiters joined, in the order of their grants.
    pub order: Vec<usize>,
    /// Time of each grant.
    pub granted_at: Vec<Duration>,
    /// Time from the release to each grant.
    pub hand_off_latencies: Vec<Duration>,
}

impl QueueGrants {
    /// Returns the number of grants that came after a grant to a later waiter.
    #[must_use]
    pub fn inversions(&self) -> usize {
        let pairs = self.order.windows(2);
        pairs.filter(|two| two[0] >= two[1]).count()
    }
}

/// Starts `lines` queues. Each lock is held by one of `holders`, and `in_line` calls of the clients
/// `waiting` are queued for it, in round-robin order.
pub async fn start_queues(
    holders: &[&Client],
    waiting: &[&Client],
    (lines, waiters_per_queue): (usize, usize),
    ttl: Duration,
) -> (Vec<HeldQueue>, Vec<Waiter>) {
    let begun = (0..lines).map(async |line| {
        let lock = format!("line-{line}");
        let mut begun = HeldQueue::start(holders[line % holders.len()], &lock, ttl).await;
        let mut waiters = Vec::new();
        for position_index in 0..waiters_per_queue {
            let fixture = (position_index + line) % waiting.len();
            waiters.push(begun.add_waiter(fixture, waiting[fixture]).await);
        }
        (begun, waiters)
    });
    let (lines, waiters): (Vec<_>, Vec<_>) = join_all(begun).await.into_iter().unzip();
    (lines, waiters.into_iter().flatten().collect())
}

/// Serves all queues concurrently. Each lock is released every `pace`, and the releases of
/// different locks are spread over that time.
#[must_use]
pub fn serve_queues(
    lines: Vec<HeldQueue>,
    release_interval: Duration,
) -> Vec<AbortOnDropHandle<QueueGrants>> {
    let (begun, count) = (boottime(), u32::try_from(lines.len()).expect("few"));
    let served = lines.into_iter().zip(0..).map(|(line, index)| {
        let from = begun + release_interval * index / count;
        AbortOnDropHandle::new(tokio::spawn(
            line.release_repeatedly(from, release_interval),
        ))
    });
    served.collect()
}

/// Prints the results, and asserts that all waiters were granted the lock in the order of joining,
/// some of them during faults.
pub fn report_queues(
    setting: &str,
    served: &[QueueGrants],
    waiters_per_queue: usize,
    is_in_fault: impl Fn(Duration) -> bool,
) {
    let inversions: usize = served.iter().map(QueueGrants::inversions).sum();
    let granted = served.iter().flat_map(|line| &line.granted_at);
    let in_faults = granted.filter(|at| is_in_fault(**at)).count();
    let after_release = served.iter().flat_map(|line| &line.hand_off_latencies);
    let granted: usize = served.iter().map(|line| line.order.len()).sum();
    print_figures(&format!(
        "{setting}: lines={} granted={granted} granted_in_faults={in_faults} \
         inversions={inversions} after_release: {}",
        served.len(),
        format_spread(after_release.copied().collect())
    ));
    assert_eq!(
        granted,
        served.len() * waiters_per_queue,
        "everybody is granted in the end"
    );
    assert_eq!(inversions, 0, "grants out of the order of joining");
    assert!(in_faults > 0, "lines went on during faults");
}

impl HeldQueue {
    /// Acquires a lock, whose queue is empty then.
    pub async fn start(client: &Client, lock: &str, ttl: Duration) -> Self {
        let holder = client.lock(lock).ttl(ttl).acquire().await;
        let (turn, turns) = mpsc::unbounded_channel();
        Self {
            lock: lock.to_owned(),
            holder: holder.expect("it is free"),
            ttl,
            waiters: Vec::new(),
            grants: turns,
            grant_sender: turn,
        }
    }

    /// Adds a call of the client with index `site`, and asserts that the first queue position of
    /// the call is the last.
    pub async fn add_waiter(&mut self, fixture: usize, client: &Client) -> Waiter {
        let waiter = Waiter {
            client_index: fixture,
            position_updates: Arc::default(),
            is_granted: Arc::default(),
        };
        let (notified_count, is_granted) = (
            Arc::clone(&waiter.position_updates),
            Arc::clone(&waiter.is_granted),
        );
        let (first, mut joined) = mpsc::unbounded_channel();
        let call = client.lock(self.lock.as_str()).ttl(self.ttl).wait(WAIT);
        let call = call.on_queue(move |position_index| {
            notified_count.fetch_add(1, Ordering::SeqCst);
            // Only the first position is received.
            let _ = first.send(position_index.position);
        });
        let (turn, position_index) = (self.grant_sender.clone(), self.waiters.len());
        let wait = tokio::spawn(async move {
            let granted = call.acquire().await;
            is_granted.store(true, Ordering::SeqCst);
            // The queue may have been dropped with its receiver.
            let _ = turn.send((position_index, granted));
        });
        self.waiters.push(AbortOnDropHandle::new(wait));
        let position = timeout(JOIN_LIMIT, joined.recv()).await;
        let position = position.expect("it joins in time").expect("it waits");
        assert_eq!(
            usize::try_from(position),
            Ok(self.waiters.len()),
            "at the end"
        );
        waiter
    }

    /// Releases the lock every `pace`, starting at `from`, until all waiters have had it.
    pub async fn release_repeatedly(
        mut self,
        from: Duration,
        release_interval: Duration,
    ) -> QueueGrants {
        let mut served = QueueGrants::default();
        let mut release_at = from;
        loop {
            sleep(release_at.saturating_sub(boottime())).await;
            release_at += release_interval;
            let last = self.holder.fencing_token();
            let begun = boottime();
            let released = self.holder.release().await;
            released.expect("it was held all the time");
            if served.order.len() == self.waiters.len() {
                return served;
            }
            let turn = timeout(GRANT_LIMIT, self.grants.recv()).await;
            let (position_index, granted) = turn.expect("granted in time").expect("a caller waits");
            self.holder = granted.expect("its turn");
            served.hand_off_latencies.push(boottime() - begun);
            served.order.push(position_index);
            served.granted_at.push(boottime());
            assert!(self.holder.fencing_token() > last, "tokens rise");
        }
    }
}
