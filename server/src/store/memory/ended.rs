//! Leases that are over, remembered for a while so that repeats get a true answer.

use std::collections::{HashMap, VecDeque};

use super::{holders::Held, record::Record, tombstones::Dead};
use crate::{
    lock::{Acquire, EXPIRED_MAX, EXPIRED_MS, LeaseId, RELEASED_MAX, TOMBSTONE_MS, Under},
    store::Released,
};

/// Deleted so much later than they count as forgotten: a small step of the clock back changes no
/// answer.
const FORGET_MS: u64 = 1_000;

/// Ended leases of one kind, in the order in which they ended.
#[derive(Debug, Default)]
pub(super) struct Ended {
    last: u64,
    order: VecDeque<(u64, u64, LeaseId)>,
    leases: HashMap<LeaseId, Stamp>,
}

#[derive(Debug)]
struct Stamp {
    seq: u64,
    at_ms: u64,
    /// Why it was revoked, if it was.
    reason: Option<String>,
}

impl Ended {
    /// Remembers a lease that ended at `at_ms`.
    pub(super) fn remember(&mut self, lease_id: LeaseId, at_ms: u64, reason: Option<String>) {
        self.last += 1;
        self.order.push_back((self.last, at_ms, lease_id));
        let seq = self.last;
        self.leases.insert(lease_id, Stamp { seq, at_ms, reason });
    }

    /// Why a lease was revoked.
    fn reason(&self, lease_id: &LeaseId) -> Option<String> {
        self.leases.get(lease_id)?.reason.clone()
    }

    /// Drops the oldest while `keep(sequence, at_ms, last sequence)` says no even of ones that ended
    /// a little later.
    pub(super) fn forget(&mut self, keep: impl Fn(u64, u64, u64) -> bool) {
        while let Some(&(seq, at, lease_id)) = self.order.front() {
            if keep(seq, at + FORGET_MS, self.last) {
                return;
            }
            self.order.pop_front();
            if self
                .leases
                .get(&lease_id)
                .is_some_and(|known| known.seq == seq)
            {
                self.leases.remove(&lease_id);
            }
        }
    }

    /// Among the `newest` of its kind, or younger than `age_ms`.
    pub(super) fn knows(&self, lease_id: &LeaseId, newest: u64, now: u64, age_ms: u64) -> bool {
        self.leases
            .get(lease_id)
            .is_some_and(|known| known.seq + newest > self.last || known.at_ms + age_ms > now)
    }

    /// Among the `newest` of its kind, and younger than `age_ms`.
    pub(super) fn remembers(&self, lease_id: &LeaseId, newest: u64, now: u64, age_ms: u64) -> bool {
        self.leases
            .get(lease_id)
            .is_some_and(|known| known.seq + newest > self.last && known.at_ms + age_ms > now)
    }
}

impl Record {
    /// How a lease that does not hold the lock ended, as far as it is remembered.
    pub(super) fn ended(&self, lease_id: LeaseId, now: u64) -> Released {
        if self.holders.by_lease(lease_id).is_some() {
            Released::NotFound
        } else if self.was_released(lease_id, now) {
            Released::Already { hold_count: 0 }
        } else if self.was_expired(lease_id, now) {
            let reason = self.expired.reason(&lease_id);
            reason.map_or(Released::Expired, |reason| Released::Revoked { reason })
        } else {
            Released::NotFound
        }
    }

    /// What the call made or entered is over.
    pub(super) fn is_over(&self, acquire: &Acquire, now: u64) -> bool {
        let lease_id = acquire.lease_id;
        let holds = self.holders.by_lease(lease_id).is_some();
        let was_released = self.was_released(lease_id, now);
        self.tombstones.knows(Dead::Request(acquire.request), now)
            || self.was_expired(lease_id, now)
            || match acquire.under {
                Under::NewLease => holds || was_released,
                Under::Lease => false,
                Under::Grant(_) => !holds && was_released,
            }
    }

    fn was_released(&self, lease_id: LeaseId, now: u64) -> bool {
        self.released
            .knows(&lease_id, RELEASED_MAX, now, TOMBSTONE_MS)
    }

    fn was_expired(&self, lease_id: LeaseId, now: u64) -> bool {
        self.expired
            .remembers(&lease_id, EXPIRED_MAX, now, EXPIRED_MS)
    }

    pub(super) fn remember_released(&mut self, lease_id: LeaseId, now: u64) {
        self.released.remember(lease_id, now, None);
        self.released
            .forget(|seq, at, last| seq + RELEASED_MAX > last || at + TOMBSTONE_MS > now);
    }

    pub(super) fn remember_expired(&mut self, held: &Held, now: u64) {
        self.expired
            .remember(held.lease_id, held.expires_ms, held.revoked.clone());
        self.expired
            .forget(|seq, at, last| seq + EXPIRED_MAX > last && at + EXPIRED_MS > now);
    }
}
