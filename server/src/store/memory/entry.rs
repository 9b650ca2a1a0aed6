//! One request at a lock: what it asks for, and which RPCs ask for it, at which brokers.

use crate::lock::{ATTEMPTS_MAX, Acquire, ArgumentsHash, AttemptId, BrokerId, RequestHash};

/// A request that holds or waits. A lease that entered its lock several times has several.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) request: RequestHash,
    pub(super) arguments: ArgumentsHash,
    pub(super) weight: u32,
    pub(super) attempts: Attempts,
}

/// Newest last; at most [`ATTEMPTS_MAX`].
#[derive(Debug, Clone, Default)]
pub(super) struct Attempts(Vec<(AttemptId, BrokerId)>);

impl Entry {
    pub(super) fn new(acquire: &Acquire, broker: BrokerId) -> Self {
        Self {
            request: acquire.request,
            arguments: acquire.arguments,
            weight: acquire.mode.weight(),
            attempts: Attempts(vec![(acquire.attempt, broker)]),
        }
    }
}

impl Attempts {
    /// Adds a newest attempt, unless it is known.
    pub(super) fn add(&mut self, attempt: AttemptId, broker: BrokerId) {
        if self.0.iter().any(|known| known.0 == attempt) {
            return;
        }
        if self.0.len() == ATTEMPTS_MAX {
            self.0.remove(0);
        }
        self.0.push((attempt, broker));
    }

    /// How many are left without `attempt`; `None` if it was not there.
    pub(super) fn remove(&mut self, attempt: AttemptId) -> Option<usize> {
        let index = self.0.iter().position(|known| known.0 == attempt)?;
        self.0.remove(index);
        Some(self.0.len())
    }

    /// The broker of the newest attempt: whose waiter or holder this is.
    pub(super) fn broker(&self) -> Option<BrokerId> {
        self.0.last().map(|newest| newest.1)
    }
}
