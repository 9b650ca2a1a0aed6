//! Clients at work on the locks of a cluster, with the answer to each single attempt of theirs.

mod stays;
mod tally;

use std::{
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use leasehold_proto::v1::ErrorReason;
use rand::Rng as _;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Status;

pub use self::{stays::Stay, tally::Tally};
use crate::{
    client::{AcquireCall, Client, Held},
    clock::{boottime, boottime_of},
    status::{reason, unknown_outcome},
    witness::{Share, Visit, Witness},
};

/// Connections to each broker.
const CONNECTIONS: usize = 4;
const CALLER_TTL: Duration = Duration::from_secs(2);
const CALLER_WAIT: Duration = Duration::from_secs(5);
const SITTER_WAIT: Duration = Duration::from_secs(15);
const WORK: Duration = Duration::from_millis(2);
/// The load leaves the machine to the faults.
const CALLER_PAUSE: Duration = Duration::from_millis(60);
const REPEAT_PAUSE: Duration = Duration::from_millis(50);
/// How much longer than it may wait a call may take at all.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// A lock that somebody works on.
#[derive(Debug, Clone)]
pub struct Lock {
    /// Its name.
    pub name: String,
    /// Those that share a fate.
    pub group: usize,
}

/// What an attempt asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// A lock.
    Acquire,
    /// More time.
    Renew,
    /// To be rid of it.
    Release,
}

/// What an attempt was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// As it was asked.
    Done,
    /// By the broker, with this reason.
    Refused(ErrorReason),
    /// Nothing that a broker says.
    Broken,
}

/// One call, sent once.
#[derive(Debug, Clone, Copy)]
pub struct Attempt {
    /// At which lock.
    pub lock: usize,
    /// Of which group that is.
    pub group: usize,
    /// What was asked for.
    pub verb: Verb,
    /// Whether it was to wait until somebody is done with the lock.
    pub patient: bool,
    /// When it was sent.
    pub begun: Duration,
    /// When it was answered.
    pub ended: Duration,
    /// What.
    pub answer: Answer,
    /// When the store granted the lock to a call that acquires: the fencing token is the store's time.
    /// The answer to a repeat shows the grant of the first attempt.
    pub granted: Option<Duration>,
}

/// All who work, until they are stopped.
#[derive(Debug)]
pub struct Work {
    /// The locks, by the index that the witness knows.
    pub locks: Vec<Lock>,
    /// Sees everybody who relies on a lock.
    pub witness: Witness,
    /// Ends the work.
    pub stop: CancellationToken,
    addrs: Vec<SocketAddr>,
    client: Client,
    attempts: Mutex<Vec<Attempt>>,
}

impl Work {
    /// On these locks, at these brokers.
    #[must_use]
    pub fn new(locks: Vec<Lock>, addrs: &[SocketAddr]) -> Self {
        Self {
            witness: Witness::new(locks.len()),
            client: Client::new("worker", &addrs.repeat(CONNECTIONS), 0),
            addrs: addrs.to_vec(),
            locks,
            stop: CancellationToken::new(),
            attempts: Mutex::default(),
        }
    }

    /// Takes one of these locks after the other, each for a moment.
    pub async fn call(&self, locks: &[usize], index: usize) {
        let client = self.client.named(&format!("caller-{index}"), index);
        while !self.stop.is_cancelled() {
            let lock = locks[rand::thread_rng().gen_range(0..locks.len())];
            let call = AcquireCall::new(&self.locks[lock].name, CALLER_TTL, CALLER_WAIT);
            if let Some(held) = self.take(&client, lock, &call, false).await {
                let entered = boottime();
                if entered < held.trusted_until() {
                    sleep(WORK).await;
                    self.saw(lock, &held, entered);
                }
                self.give_back(&client, lock, &held).await;
            }
            sleep(CALLER_PAUSE.mul_f64(rand::thread_rng().gen_range(0.5..1.5))).await;
        }
    }

    /// Takes the lock again and again, and relies on it to the last moment without renewing it.
    pub async fn sit(&self, lock: usize, index: usize) {
        let client = self.client.named(&format!("sitter-{index}"), index);
        while !self.stop.is_cancelled() {
            let call = AcquireCall::new(&self.locks[lock].name, CALLER_TTL, SITTER_WAIT);
            let Some(held) = self.take(&client, lock, &call, true).await else {
                continue;
            };
            let entered = boottime();
            if entered < held.trusted_until() {
                sleep(held.trusted_until() - entered).await;
                self.saw(lock, &held, entered);
            }
            self.give_back(&client, lock, &held).await;
        }
    }

    /// The brokers.
    #[must_use]
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Every attempt so far.
    #[must_use]
    pub fn attempts(&self) -> Vec<Attempt> {
        let attempts = self.attempts.lock();
        attempts.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// When the store first granted the lock after a moment.
    #[must_use]
    pub fn granted_after(&self, lock: usize, moment: Duration) -> Option<Duration> {
        let attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        let of_lock = attempts.iter().filter(|attempt| attempt.lock == lock);
        let grants = of_lock.filter_map(|attempt| attempt.granted);
        grants.filter(|granted| *granted > moment).min()
    }

    /// Acquires with one attempt after the other until one tells how it is. `None`: not granted.
    async fn take(
        &self,
        client: &Client,
        lock: usize,
        call: &AcquireCall,
        patient: bool,
    ) -> Option<Held> {
        loop {
            let at = rand::thread_rng().gen_range(0..self.addrs.len());
            let attempt = within(call.wait + CALL_LIMIT, client.acquire_at(at, call));
            let granted = |held: &Held| Some(granted_at(held));
            let noted = self.noted(lock, (Verb::Acquire, patient), attempt, granted);
            match noted.await {
                Ok(held) => return Some(held),
                Err(status) if unknown_outcome(&status) && !self.stop.is_cancelled() => {
                    sleep(REPEAT_PAUSE).await;
                }
                Err(_) => return None,
            }
        }
    }

    /// Releases with one attempt after the other while there is something to release.
    async fn give_back(&self, client: &Client, lock: usize, held: &Held) {
        loop {
            let at = rand::thread_rng().gen_range(0..self.addrs.len());
            let attempt = within(CALL_LIMIT, client.release_at(at, held));
            let noted = self.noted(lock, (Verb::Release, false), attempt, |_| None);
            match noted.await {
                Err(status) if unknown_outcome(&status) && boottime() < held.valid_until() => {
                    sleep(REPEAT_PAUSE).await;
                }
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// Notes what becomes of an attempt; `granted` tells when the store granted what was answered.
    async fn noted<T>(
        &self,
        lock: usize,
        (verb, patient): (Verb, bool),
        attempt: impl Future<Output = Result<T, Status>>,
        granted: impl FnOnce(&T) -> Option<Duration>,
    ) -> Result<T, Status> {
        let begun = boottime();
        let result = attempt.await;
        let attempt = Attempt {
            lock,
            group: self.locks[lock].group,
            verb,
            patient,
            begun,
            ended: boottime(),
            answer: Answer::of(&result),
            granted: result.as_ref().ok().and_then(granted),
        };
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        attempts.push(attempt);
        drop(attempts);
        result
    }

    /// Somebody relied on a lock until now, or until the end of its trust.
    fn saw(&self, lock: usize, held: &Held, entered: Duration) {
        self.witness.record(Visit {
            lock,
            share: Share::ALL,
            token: held.token(),
            entered,
            ended: boottime().min(held.trusted_until()),
        });
    }
}

/// Waits so long for the answer to an attempt.
async fn within<T>(
    limit: Duration,
    attempt: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let silent = |_| Err(Status::deadline_exceeded("no answer at all"));
    timeout(limit, attempt).await.unwrap_or_else(silent)
}

/// Returns when the store granted a lock, by the store's clock.
#[must_use]
pub fn granted_at(held: &Held) -> Duration {
    let token = u64::try_from(held.token());
    boottime_of(token.expect("a fencing token is positive"))
}

impl Answer {
    fn of<T>(result: &Result<T, Status>) -> Self {
        match result {
            Ok(_) => Self::Done,
            Err(status) => reason(status).map_or(Self::Broken, Self::Refused),
        }
    }
}
