//! Leases that are over, remembered for a while so that repeats get a true answer.

use std::collections::{HashMap, VecDeque};

use crate::lock::LeaseId;

/// Ended leases of one kind, in the order in which they ended.
#[derive(Debug, Default)]
pub(super) struct Ended {
    last: u64,
    order: VecDeque<(u64, u64, LeaseId)>,
    leases: HashMap<LeaseId, (u64, u64)>,
}

impl Ended {
    /// Remembers a lease that ended at `at_ms`.
    pub(super) fn remember(&mut self, lease_id: LeaseId, at_ms: u64) {
        self.last += 1;
        self.order.push_back((self.last, at_ms, lease_id));
        self.leases.insert(lease_id, (self.last, at_ms));
    }

    /// Drops the oldest while `keep(sequence, at_ms, last sequence)` says no.
    pub(super) fn forget(&mut self, keep: impl Fn(u64, u64, u64) -> bool) {
        while let Some(&(seq, at, lease_id)) = self.order.front() {
            if keep(seq, at, self.last) {
                return;
            }
            self.order.pop_front();
            if self
                .leases
                .get(&lease_id)
                .is_some_and(|known| known.0 == seq)
            {
                self.leases.remove(&lease_id);
            }
        }
    }

    /// Among the `newest` of its kind, or younger than `age_ms`.
    pub(super) fn knows(&self, lease_id: &LeaseId, newest: u64, now: u64, age_ms: u64) -> bool {
        self.leases
            .get(lease_id)
            .is_some_and(|&(seq, at)| seq + newest > self.last || at + age_ms > now)
    }

    /// Among the `newest` of its kind, and younger than `age_ms`.
    pub(super) fn remembers(&self, lease_id: &LeaseId, newest: u64, now: u64, age_ms: u64) -> bool {
        self.leases
            .get(lease_id)
            .is_some_and(|&(seq, at)| seq + newest > self.last && at + age_ms > now)
    }
}
