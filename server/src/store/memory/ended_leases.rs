//! Recently ended leases, retained for a while so that repeated commands get the right reply.

use std::collections::{BTreeMap, VecDeque};

use super::{context::Context, record::Record, tombstones::TombstoneKey};
use crate::{
    lock::{
        AcquireCommand, DELETION_DELAY_MS, LeaseBinding, LeaseId, LeaseRef, PARTIAL_RELEASE_MAX_MS,
        TOMBSTONE_MS,
    },
    store::LeaseRejection,
};

/// Ended leases of one kind, in the order in which they ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct EndedLeases {
    last: u64,
    order: VecDeque<(u64, u64, LeaseId)>,
    leases: BTreeMap<LeaseId, EndStamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct EndStamp {
    seq: u64,
    at_ms: u64,
    /// Reason of the revocation, if the lease was revoked.
    reason: Option<String>,
}

/// Returns true if `at_ms` is so far in the future that it was recorded before the clock was set
/// back. The record is then ignored.
fn is_ahead(at_ms: u64, now: u64) -> bool {
    at_ms > now + 2 * DELETION_DELAY_MS
}

/// Returns true if the release of a lock from a lease (a part) is still retained. A time far in the
/// future was recorded before the clock was set back, and does not count.
fn retains_partial_release(until_ms: u64, now: u64) -> bool {
    until_ms > now && until_ms <= now + PARTIAL_RELEASE_MAX_MS
}

impl EndedLeases {
    /// Records a lease that ended at `at_ms`.
    pub(super) fn record(&mut self, lease_id: LeaseId, at_ms: u64, reason: Option<String>) {
        self.last += 1;
        self.order.push_back((self.last, at_ms, lease_id));
        let seq = self.last;
        self.leases
            .insert(lease_id, EndStamp { seq, at_ms, reason });
    }

    /// Returns the reason for which a lease was revoked.
    pub(super) fn reason(&self, lease_id: &LeaseId) -> Option<String> {
        self.leases.get(lease_id)?.reason.clone()
    }

    /// Deletes the oldest leases until `keep(sequence, at_ms, last sequence)` returns true for a
    /// lease. The end time passed to `keep` is later than the actual one by [`DELETION_DELAY_MS`].
    pub(super) fn evict(&mut self, keep: impl Fn(u64, u64, u64) -> bool) {
        while let Some(&(seq, at, lease_id)) = self.order.front() {
            if keep(seq, at + DELETION_DELAY_MS, self.last) {
                return;
            }
            self.order.pop_front();
            if self
                .leases
                .get(&lease_id)
                .is_some_and(|ended| ended.seq == seq)
            {
                self.leases.remove(&lease_id);
            }
        }
    }

    /// Returns true if the lease is among the `newest` of its kind, or ended less than `age_ms`
    /// ago.
    pub(super) fn is_recent_or_young(
        &self,
        lease_id: &LeaseId,
        newest: u64,
        now: u64,
        age_ms: u64,
    ) -> bool {
        let is_young = |at_ms| at_ms + age_ms > now && !is_ahead(at_ms, now);
        self.leases
            .get(lease_id)
            .is_some_and(|ended| ended.seq + newest > self.last || is_young(ended.at_ms))
    }

    /// Returns true if the lease is among the `newest` of its kind, and ended less than `age_ms`
    /// ago.
    pub(super) fn is_recent_and_young(
        &self,
        lease_id: &LeaseId,
        newest: u64,
        now: u64,
        age_ms: u64,
    ) -> bool {
        self.leases
            .get(lease_id)
            .is_some_and(|ended| ended.seq + newest > self.last && ended.at_ms + age_ms > now)
    }
}

impl Record {
    /// Returns how the hold with this token ended, if its end is retained.
    pub(super) fn ended(&self, lease: &LeaseRef, context: &Context) -> LeaseRejection {
        let held = self.holders.by_lease(lease.lease_id);
        // A lock is added to its lease again only after a release.
        if held.is_some_and(|held| held.fencing_token > lease.fencing_token)
            && self.was_released(lease.lease_id, context)
        {
            return LeaseRejection::Released;
        }
        self.ended_lease(lease.lease_id, context)
    }

    /// Returns how a lease that does not hold the lock ended, if its end is retained.
    pub(super) fn ended_lease(&self, lease_id: LeaseId, context: &Context) -> LeaseRejection {
        if self.holders.by_lease(lease_id).is_some() {
            LeaseRejection::NotFound
        } else if self.was_expired(lease_id, context) {
            // Expiry is checked before release: a lock can be added to its lease again after a
            // release, but not after an expiry.
            match self.expired.reason(&lease_id) {
                Some(reason) => LeaseRejection::Revoked { reason },
                None => LeaseRejection::Expired,
            }
        } else if self.was_released(lease_id, context) {
            LeaseRejection::Released
        } else {
            LeaseRejection::NotFound
        }
    }

    /// Returns true if the lease that the call created or entered has ended, or if the entry of the
    /// call was released.
    pub(super) fn has_ended(&self, acquire: &AcquireCommand, context: &Context) -> bool {
        let lease_id = acquire.lease_id;
        let holds = self.holders.by_lease(lease_id).is_some();
        self.tombstones
            .contains(TombstoneKey::Request(acquire.request), context.now())
            || self.was_expired(lease_id, context)
            || match acquire.binding {
                LeaseBinding::New => holds || self.is_newly_released(lease_id, context),
                LeaseBinding::Existing => false,
                LeaseBinding::Reentry(_) => !holds && self.was_released(lease_id, context),
            }
    }

    /// Returns true if the lock was released from the lease. The lease may have other locks.
    fn was_released(&self, lease_id: LeaseId, context: &Context) -> bool {
        let parts = &self.partial_releases;
        parts
            .get(&lease_id)
            .is_some_and(|at| retains_partial_release(*at, context.now()))
            || self.is_newly_released(lease_id, context)
    }

    fn is_newly_released(&self, lease_id: LeaseId, context: &Context) -> bool {
        let released_max = context.bounds.released_max;
        self.released
            .is_recent_or_young(&lease_id, released_max, context.now(), TOMBSTONE_MS)
    }

    pub(super) fn record_released(&mut self, lease_id: LeaseId, context: &Context) {
        let (now, released_max) = (context.now(), context.bounds.released_max);
        self.released.record(lease_id, now, None);
        let is_young = |at| at + TOMBSTONE_MS > now && !is_ahead(at, now);
        self.released
            .evict(|seq, at, last| seq + released_max > last || is_young(at));
    }

    /// Records that the lock, or an entry of it, was released from a lease that may have other locks.
    /// The record is retained until the lease can no longer be presented with this lock.
    pub(super) fn record_partial_release(&mut self, lease_id: LeaseId, now: u64, until_ms: u64) {
        self.partial_releases
            .retain(|_, at| retains_partial_release(*at + DELETION_DELAY_MS, now));
        self.partial_releases.insert(lease_id, until_ms);
    }
}
