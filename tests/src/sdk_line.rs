//! A line of waiting calls of the Rust client before a lock that is held: who joined when, and who
//! was granted in which order.

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

use crate::{clock::boottime, scale::figures, time_left::spread};

const JOIN_LIMIT: Duration = Duration::from_secs(20);
const TURN_LIMIT: Duration = Duration::from_secs(60);
/// The longest that one call may wait.
const WAIT: Duration = Duration::from_secs(3_600);

/// What a waiter says when its call has ended: in which place it joined, and what it got.
type Turn = (usize, Result<Guard, Error>);

/// Somebody in a line.
#[derive(Debug, Clone)]
pub struct Waiter {
    /// The number of its site.
    pub site: usize,
    told: Arc<AtomicUsize>,
    is_granted: Arc<AtomicBool>,
}

impl Waiter {
    /// How often it was told its place; `None` once it has the lock.
    #[must_use]
    pub fn told(&self) -> Option<usize> {
        let is_waiting = !self.is_granted.load(Ordering::SeqCst);
        is_waiting.then(|| self.told.load(Ordering::SeqCst))
    }
}

/// A lock, its holder and those who wait for it.
#[derive(Debug)]
pub struct Line {
    lock: String,
    holder: Guard,
    ttl: Duration,
    waits: Vec<AbortOnDropHandle<()>>,
    turns: mpsc::UnboundedReceiver<Turn>,
    turn: mpsc::UnboundedSender<Turn>,
}

/// What became of a line.
#[derive(Debug, Default)]
pub struct Served {
    /// Who was granted the lock, by the place in which each joined, in the order of their tokens.
    pub order: Vec<usize>,
    /// When each was granted.
    pub granted_at: Vec<Duration>,
    /// How long after the release each grant came.
    pub after_release: Vec<Duration>,
}

impl Served {
    /// How many were granted the lock before somebody who had joined earlier.
    #[must_use]
    pub fn inversions(&self) -> usize {
        let pairs = self.order.windows(2);
        pairs.filter(|two| two[0] >= two[1]).count()
    }
}

/// Lines that are complete: each lock is held by one of `holders`, and `in_line` calls of those who
/// wait stand before it, of one client after the other.
pub async fn start_all(
    holders: &[&Client],
    waiting: &[&Client],
    (lines, in_line): (usize, usize),
    ttl: Duration,
) -> (Vec<Line>, Vec<Waiter>) {
    let begun = (0..lines).map(async |line| {
        let lock = format!("line-{line}");
        let mut begun = Line::start(holders[line % holders.len()], &lock, ttl).await;
        let mut waiters = Vec::new();
        for place in 0..in_line {
            let site = (place + line) % waiting.len();
            waiters.push(begun.join(site, waiting[site]).await);
        }
        (begun, waiters)
    });
    let (lines, waiters): (Vec<_>, Vec<_>) = join_all(begun).await.into_iter().unzip();
    (lines, waiters.into_iter().flatten().collect())
}

/// Serves them side by side: each releases every `pace`, not all at the same moments.
#[must_use]
pub fn serve_all(lines: Vec<Line>, pace: Duration) -> Vec<AbortOnDropHandle<Served>> {
    let (begun, count) = (boottime(), u32::try_from(lines.len()).expect("few"));
    let served = lines.into_iter().zip(0..).map(|(line, index)| {
        let from = begun + pace * index / count;
        AbortOnDropHandle::new(tokio::spawn(line.serve(from, pace)))
    });
    served.collect()
}

/// Prints what became of the lines, and judges it: everybody was granted in the end, in the order
/// of joining, and some of them during faults.
pub fn report(
    setting: &str,
    served: &[Served],
    in_line: usize,
    is_in_fault: impl Fn(Duration) -> bool,
) {
    let inversions: usize = served.iter().map(Served::inversions).sum();
    let granted = served.iter().flat_map(|line| &line.granted_at);
    let in_faults = granted.filter(|at| is_in_fault(**at)).count();
    let after_release = served.iter().flat_map(|line| &line.after_release);
    let granted: usize = served.iter().map(|line| line.order.len()).sum();
    figures(&format!(
        "{setting}: lines={} granted={granted} granted_in_faults={in_faults} \
         inversions={inversions} after_release: {}",
        served.len(),
        spread(after_release.copied().collect())
    ));
    assert_eq!(
        granted,
        served.len() * in_line,
        "everybody is granted in the end"
    );
    assert_eq!(inversions, 0, "grants out of the order of joining");
    assert!(in_faults > 0, "lines went on during faults");
}

impl Line {
    /// A lock that is held.
    pub async fn start(client: &Client, lock: &str, ttl: Duration) -> Self {
        let holder = client.lock(lock).ttl(ttl).acquire().await;
        let (turn, turns) = mpsc::unbounded_channel();
        Self {
            lock: lock.to_owned(),
            holder: holder.expect("it is free"),
            ttl,
            waits: Vec::new(),
            turns,
            turn,
        }
    }

    /// Somebody of the site with this number joins, and is told its place, which must be the last.
    pub async fn join(&mut self, site: usize, client: &Client) -> Waiter {
        let waiter = Waiter {
            site,
            told: Arc::default(),
            is_granted: Arc::default(),
        };
        let (told, is_granted) = (Arc::clone(&waiter.told), Arc::clone(&waiter.is_granted));
        let (first, mut joined) = mpsc::unbounded_channel();
        let call = client.lock(self.lock.as_str()).ttl(self.ttl).wait(WAIT);
        let call = call.on_queue(move |place| {
            told.fetch_add(1, Ordering::SeqCst);
            // Only the first is waited for.
            let _ = first.send(place.position);
        });
        let (turn, place) = (self.turn.clone(), self.waits.len());
        let wait = tokio::spawn(async move {
            let granted = call.acquire().await;
            is_granted.store(true, Ordering::SeqCst);
            // A line that is not served any more is over.
            let _ = turn.send((place, granted));
        });
        self.waits.push(AbortOnDropHandle::new(wait));
        let position = timeout(JOIN_LIMIT, joined.recv()).await;
        let position = position.expect("it joins in time").expect("it waits");
        assert_eq!(
            usize::try_from(position),
            Ok(self.waits.len()),
            "at the end"
        );
        waiter
    }

    /// Releases the lock every `pace`, beginning at `from`, until everybody had it.
    pub async fn serve(mut self, from: Duration, pace: Duration) -> Served {
        let mut served = Served::default();
        let mut release_at = from;
        loop {
            sleep(release_at.saturating_sub(boottime())).await;
            release_at += pace;
            let last = self.holder.fencing_token();
            let begun = boottime();
            let released = self.holder.release().await;
            released.expect("it was held all the time");
            if served.order.len() == self.waits.len() {
                return served;
            }
            let turn = timeout(TURN_LIMIT, self.turns.recv()).await;
            let (place, granted) = turn.expect("granted in time").expect("somebody waits");
            self.holder = granted.expect("its turn");
            served.after_release.push(boottime() - begun);
            served.order.push(place);
            served.granted_at.push(boottime());
            assert!(self.holder.fencing_token() > last, "tokens rise");
        }
    }
}
