//! Record of the guards of the Rust client for the oracle: locks, fencing tokens, and periods of
//! validity.

use std::{
    collections::HashSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold::Held;

use crate::{
    clock::boottime,
    load::mutual_exclusion_oracle::{LockUse, Oracle, Share},
};

/// Record of every guard of a run.
#[derive(Debug)]
pub struct HoldLog {
    pub oracle: Oracle,
    leases: Mutex<HashSet<String>>,
    tokens: Mutex<HashSet<(usize, i64)>>,
    lost_count: AtomicUsize,
}

/// A period in which locks are relied on. It ends when this is dropped, which must happen before
/// the guard is dropped.
#[derive(Debug)]
pub struct RecordedHold<'a> {
    log: &'a HoldLog,
    held: Held,
    locks: Vec<usize>,
    started_at: Duration,
}

impl HoldLog {
    /// Creates a record for this number of locks.
    #[must_use]
    pub fn new(locks: usize) -> Self {
        Self {
            oracle: Oracle::new(locks),
            leases: Mutex::default(),
            tokens: Mutex::default(),
            lost_count: AtomicUsize::new(0),
        }
    }

    /// Records the guard of a call for these locks, which must have a new lease.
    pub fn record_acquired(&self, held: &Held, locks: &[usize]) -> RecordedHold<'_> {
        let is_new = lock(&self.leases).insert(held.lease_id().to_owned());
        assert!(is_new, "two calls were answered with one lease: {held:?}");
        self.record_added(held, locks)
    }

    /// Records the guard of a call that has added these locks to a lease.
    pub fn record_added(&self, held: &Held, locks: &[usize]) -> RecordedHold<'_> {
        let entered = boottime();
        let (mut requested, mut got): (Vec<_>, _) = (
            locks
                .iter()
                .map(|lock| format!("default/{}", lock_name(*lock)))
                .collect(),
            held.locks(),
        );
        requested.sort();
        got.sort();
        assert_eq!(requested, got, "other locks than were asked for");
        for lock in locks {
            let token = held.fencing_token_of(lock_name(*lock)).expect("it has it");
            let is_new = self::lock(&self.tokens).insert((*lock, token));
            assert!(is_new && token > 0, "an old token: {held:?}");
        }
        RecordedHold {
            log: self,
            held: held.clone(),
            locks: locks.to_vec(),
            started_at: entered,
        }
    }

    /// Returns the number of granted leases.
    #[must_use]
    pub fn lease_count(&self) -> usize {
        lock(&self.leases).len()
    }

    /// Returns the number of periods at whose end the lease was lost.
    #[must_use]
    pub fn lost_count(&self) -> usize {
        self.lost_count.load(Ordering::SeqCst)
    }
}

impl Drop for RecordedHold<'_> {
    fn drop(&mut self) {
        let ended = boottime();
        if !self.held.is_valid() {
            // The time of the loss is unknown. Recording the period until now would be wrong.
            self.log.lost_count.fetch_add(1, Ordering::SeqCst);
            return;
        }
        for lock in &self.locks {
            let token = self.held.fencing_token_of(lock_name(*lock));
            self.log.oracle.record(LockUse {
                lock: *lock,
                share: Share::ALL,
                token: token.unwrap_or_default(),
                started_at: self.started_at,
                ended_at: ended,
            });
        }
    }
}

/// Returns the name of the lock with this index.
#[must_use]
pub fn lock_name(lock: usize) -> String {
    format!("stay-{lock}")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
