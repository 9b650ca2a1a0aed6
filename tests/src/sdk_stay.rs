//! What guards of the Rust client say of themselves, seen by the referee: which locks, under which
//! tokens, and how long each could be relied on.

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
    witness::{Share, Visit, Witness},
};

/// Sees every guard of a run.
#[derive(Debug)]
pub struct Register {
    /// The referee.
    pub witness: Witness,
    leases: Mutex<HashSet<String>>,
    tokens: Mutex<HashSet<(usize, i64)>>,
    lost: AtomicUsize,
}

/// Some locks are relied on until this is dropped, which must be before their guard is.
#[derive(Debug)]
pub struct Stay<'a> {
    register: &'a Register,
    held: Held,
    locks: Vec<usize>,
    entered: Duration,
}

impl Register {
    /// For so many locks.
    #[must_use]
    pub fn new(locks: usize) -> Self {
        Self {
            witness: Witness::new(locks),
            leases: Mutex::default(),
            tokens: Mutex::default(),
            lost: AtomicUsize::new(0),
        }
    }

    /// The guard of a call for these locks, under a lease of its own.
    pub fn enter(&self, held: &Held, locks: &[usize]) -> Stay<'_> {
        let is_new = lock(&self.leases).insert(held.lease_id().to_owned());
        assert!(is_new, "two calls were answered with one lease: {held:?}");
        self.enter_under(held, locks)
    }

    /// The guard of a call that has added these locks to a lease.
    pub fn enter_under(&self, held: &Held, locks: &[usize]) -> Stay<'_> {
        let entered = boottime();
        let (mut asked, mut got): (Vec<_>, _) = (
            locks
                .iter()
                .map(|lock| format!("default/{}", lock_name(*lock)))
                .collect(),
            held.locks(),
        );
        asked.sort();
        got.sort();
        assert_eq!(asked, got, "other locks than were asked for");
        for lock in locks {
            let token = held.fencing_token_of(lock_name(*lock)).expect("it has it");
            let is_new = self::lock(&self.tokens).insert((*lock, token));
            assert!(is_new && token > 0, "an old token: {held:?}");
        }
        Stay {
            register: self,
            held: held.clone(),
            locks: locks.to_vec(),
            entered,
        }
    }

    /// Leases that were granted.
    #[must_use]
    pub fn leases(&self) -> usize {
        lock(&self.leases).len()
    }

    /// Stays at whose end the lock was lost.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.lost.load(Ordering::SeqCst)
    }
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        let ended = boottime();
        if !self.held.is_valid() {
            // When it was lost is not known; that it was valid until now would be wrong.
            self.register.lost.fetch_add(1, Ordering::SeqCst);
            return;
        }
        for lock in &self.locks {
            let token = self.held.fencing_token_of(lock_name(*lock));
            self.register.witness.record(Visit {
                lock: *lock,
                share: Share::ALL,
                token: token.unwrap_or_default(),
                entered: self.entered,
                ended,
            });
        }
    }
}

/// The name of the witness's lock.
#[must_use]
pub fn lock_name(lock: usize) -> String {
    format!("stay-{lock}")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
