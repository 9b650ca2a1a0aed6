//! Clients that work on the locks of a cluster, with a log of the result of each attempt.

mod attempt_counts;
mod long_holds;

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

pub use self::{attempt_counts::AttemptCounts, long_holds::LongHold};
use crate::{
    client::unary::{AcquireCall, Client, HeldLease},
    clock::{boottime, boottime_from_store},
    load::mutual_exclusion_oracle::{LockUse, Oracle, Share},
    status::{error_reason, has_unknown_outcome},
};

/// Number of connections to each broker.
const CONNECTIONS: usize = 4;
const CALLER_TTL: Duration = Duration::from_secs(2);
const CALLER_WAIT: Duration = Duration::from_secs(5);
const NON_RENEWING_WAIT: Duration = Duration::from_secs(15);
const WORK_TIME: Duration = Duration::from_millis(2);
/// Pause between calls, which leaves the machine to the faults.
const CALLER_PAUSE: Duration = Duration::from_millis(60);
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Time beyond its wait that a call may take.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// A lock of the workload.
#[derive(Debug, Clone)]
pub struct Lock {
    pub name: String,
    /// Group of locks that are affected by the same faults.
    pub group: usize,
}

/// Kind of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallKind {
    Acquire,
    Renew,
    Release,
}

/// Result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallResult {
    /// The attempt succeeded.
    Succeeded,
    /// A broker rejected the attempt with this reason.
    Rejected(ErrorReason),
    /// The attempt failed without a response from a broker.
    NoReply,
}

/// One call, sent once.
#[derive(Debug, Clone, Copy)]
pub struct Attempt {
    /// Index of the lock.
    pub lock: usize,
    /// Group of the lock.
    pub group: usize,
    pub kind: CallKind,
    /// True if the attempt was to wait for the current holder.
    pub waits: bool,
    pub started_at: Duration,
    /// Time of the result.
    pub ended_at: Duration,
    pub result: CallResult,
    /// Time at which the store granted the lock to an acquire, from the fencing token, which is the
    /// store's time. The reply to a repeat has the grant of the first attempt.
    pub granted_at: Option<Duration>,
}

/// All workers, until they are stopped.
#[derive(Debug)]
pub struct Workload {
    /// The locks, with the indexes of the oracle.
    pub locks: Vec<Lock>,
    /// The oracle, which records every hold of a lock.
    pub oracle: Oracle,
    pub stop: CancellationToken,
    addrs: Vec<SocketAddr>,
    client: Client,
    attempts: Mutex<Vec<Attempt>>,
}

impl Workload {
    /// Creates a workload on these locks, with these brokers.
    #[must_use]
    pub fn new(locks: Vec<Lock>, addrs: &[SocketAddr]) -> Self {
        Self {
            oracle: Oracle::new(locks.len()),
            client: Client::new("worker", &addrs.repeat(CONNECTIONS), 0),
            addrs: addrs.to_vec(),
            locks,
            stop: CancellationToken::new(),
            attempts: Mutex::default(),
        }
    }

    /// Acquires random locks of `locks` one after the other, each for a short time.
    pub async fn run_caller(&self, locks: &[usize], index: usize) {
        let client = self.client.with_name(&format!("caller-{index}"), index);
        while !self.stop.is_cancelled() {
            let lock = locks[rand::thread_rng().gen_range(0..locks.len())];
            let call = AcquireCall::new(&self.locks[lock].name, CALLER_TTL, CALLER_WAIT);
            if let Some(held) = self.acquire(&client, lock, &call, false).await {
                let entered = boottime();
                if entered < held.trusted_until() {
                    sleep(WORK_TIME).await;
                    self.record_hold(lock, &held, entered);
                }
                self.release(&client, lock, &held).await;
            }
            sleep(CALLER_PAUSE.mul_f64(rand::thread_rng().gen_range(0.5..1.5))).await;
        }
    }

    /// Acquires the lock repeatedly, and relies on it until the end of its trusted validity without
    /// renewing it.
    pub async fn run_non_renewing_holder(&self, lock: usize, index: usize) {
        let client = self.client.with_name(&format!("sitter-{index}"), index);
        while !self.stop.is_cancelled() {
            let call = AcquireCall::new(&self.locks[lock].name, CALLER_TTL, NON_RENEWING_WAIT);
            let Some(held) = self.acquire(&client, lock, &call, true).await else {
                continue;
            };
            let entered = boottime();
            if entered < held.trusted_until() {
                sleep(held.trusted_until() - entered).await;
                self.record_hold(lock, &held, entered);
            }
            self.release(&client, lock, &held).await;
        }
    }

    #[must_use]
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Returns all attempts so far.
    #[must_use]
    pub fn attempts(&self) -> Vec<Attempt> {
        let attempts = self.attempts.lock();
        attempts.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the first time after `moment` at which the store granted the lock.
    #[must_use]
    pub fn first_grant_after(&self, lock: usize, moment: Duration) -> Option<Duration> {
        let attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        let of_lock = attempts.iter().filter(|attempt| attempt.lock == lock);
        let grants = of_lock.filter_map(|attempt| attempt.granted_at);
        grants.filter(|granted| *granted > moment).min()
    }

    /// Repeats an acquire until its outcome is known. Returns `None` if the lock was not granted.
    async fn acquire(
        &self,
        client: &Client,
        lock: usize,
        call: &AcquireCall,
        patient: bool,
    ) -> Option<HeldLease> {
        loop {
            let at = rand::thread_rng().gen_range(0..self.addrs.len());
            let attempt = with_timeout(call.wait + CALL_LIMIT, client.acquire_at(at, call));
            let granted = |held: &HeldLease| Some(granted_at(held));
            let recorded =
                self.record_attempt(lock, (CallKind::Acquire, patient), attempt, granted);
            match recorded.await {
                Ok(held) => return Some(held),
                Err(status) if has_unknown_outcome(&status) && !self.stop.is_cancelled() => {
                    sleep(RETRY_PAUSE).await;
                }
                Err(_) => return None,
            }
        }
    }

    /// Repeats a release until its outcome is known, or until the lease has expired.
    async fn release(&self, client: &Client, lock: usize, held: &HeldLease) {
        loop {
            let at = rand::thread_rng().gen_range(0..self.addrs.len());
            let attempt = with_timeout(CALL_LIMIT, client.release_at(at, held));
            let recorded = self.record_attempt(lock, (CallKind::Release, false), attempt, |_| None);
            match recorded.await {
                Err(status) if has_unknown_outcome(&status) && boottime() < held.valid_until() => {
                    sleep(RETRY_PAUSE).await;
                }
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// Logs the result of an attempt. `granted` returns the time of the grant from the response.
    async fn record_attempt<T>(
        &self,
        lock: usize,
        (verb, patient): (CallKind, bool),
        attempt: impl Future<Output = Result<T, Status>>,
        granted: impl FnOnce(&T) -> Option<Duration>,
    ) -> Result<T, Status> {
        let started_at = boottime();
        let result = attempt.await;
        let attempt = Attempt {
            lock,
            group: self.locks[lock].group,
            kind: verb,
            waits: patient,
            started_at,
            ended_at: boottime(),
            result: CallResult::from_result(&result),
            granted_at: result.as_ref().ok().and_then(granted),
        };
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        attempts.push(attempt);
        drop(attempts);
        result
    }

    /// Records a hold of the lock until now, or until the end of the trusted validity.
    fn record_hold(&self, lock: usize, held: &HeldLease, entered: Duration) {
        self.oracle.record(LockUse {
            lock,
            share: Share::ALL,
            token: held.token(),
            started_at: entered,
            ended_at: boottime().min(held.trusted_until()),
        });
    }
}

/// Limits the time of an attempt.
async fn with_timeout<T>(
    limit: Duration,
    attempt: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let silent = |_| Err(Status::deadline_exceeded("no answer at all"));
    timeout(limit, attempt).await.unwrap_or_else(silent)
}

/// Returns the time at which the store granted a lock, by the store's clock.
#[must_use]
pub fn granted_at(held: &HeldLease) -> Duration {
    let token = u64::try_from(held.token());
    boottime_from_store(token.expect("a fencing token is positive"))
}

impl CallResult {
    fn from_result<T>(result: &Result<T, Status>) -> Self {
        match result {
            Ok(_) => Self::Succeeded,
            Err(status) => error_reason(status).map_or(Self::NoReply, Self::Rejected),
        }
    }
}
