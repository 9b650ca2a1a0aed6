//! Quota permits and expiry of leases that are on no stream of this broker. Without a stream, their
//! expiry must be detected here.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use tokio::time::Instant;

use super::QuotaPermit;
use crate::lock::{LeaseId, LockKey};

/// Permits of these leases until they end, and locks to check after their leases have expired.
#[derive(Debug, Default)]
pub(super) struct DetachedLeases {
    leases: HashMap<LeaseId, (Instant, Vec<QuotaPermit>)>,
    by_end: BTreeSet<(Instant, LeaseId)>,
    /// Locks that the store keeps, for leases whose permits are released.
    scheduled_checks: BTreeMap<(Instant, LeaseId), Vec<LockKey>>,
    /// Locks of expired leases that [`DetachedLeases::drain_expired`] has not returned yet.
    expired: Vec<LockKey>,
}

/// Maximum number of expired locks to check, and of leases whose locks the store keeps. Beyond
/// this, the expiry is detected by the next command for the lock.
const EXPIRED_MAX: usize = 10_000;

impl DetachedLeases {
    /// Adds the permits of a lease to those that are stored for it, and replaces the end of the
    /// lease.
    pub(super) fn insert(
        &mut self,
        lease_id: LeaseId,
        mut permits: Vec<QuotaPermit>,
        remaining: Duration,
    ) {
        for permit in self.remove(lease_id) {
            if permits
                .iter()
                .all(|new_permit| new_permit.lock() != permit.lock())
            {
                permits.push(permit);
            }
        }
        let ends_at = Instant::now() + remaining;
        self.by_end.insert((ends_at, lease_id));
        self.leases.insert(lease_id, (ends_at, permits));
    }

    pub(super) fn renewed(&mut self, lease_id: LeaseId, remaining: Duration) {
        let permits = self.remove(lease_id);
        if !permits.is_empty() {
            self.insert(lease_id, permits, remaining);
        }
    }

    pub(super) fn released(&mut self, lease_id: LeaseId, lock: &LockKey) {
        let Some((_, permits)) = self.leases.get_mut(&lease_id) else {
            return;
        };
        permits.retain(|permit| permit.lock() != lock);
        if permits.is_empty() {
            self.remove(lease_id);
        }
    }

    /// Removes the permits of a lease and returns them.
    pub(super) fn remove(&mut self, lease_id: LeaseId) -> Vec<QuotaPermit> {
        let Some((ends_at, permits)) = self.leases.remove(&lease_id) else {
            return Vec::new();
        };
        self.by_end.remove(&(ends_at, lease_id));
        permits
    }

    pub(super) fn evict_expired(&mut self) {
        let now = Instant::now();
        while let Some(&(_, lease_id)) = self.by_end.first().filter(|(ends_at, _)| *ends_at <= now)
        {
            let permits = self.remove(lease_id);
            let capacity = EXPIRED_MAX.saturating_sub(self.expired.len());
            let locks = permits
                .iter()
                .take(capacity)
                .map(|permit| permit.lock().clone());
            self.expired.extend(locks);
        }
    }

    /// Schedules a check of these locks of a lease for the time at which the store ends the lease.
    pub(super) fn track_until_expiry(
        &mut self,
        lease_id: LeaseId,
        locks: Vec<LockKey>,
        remaining: Duration,
    ) {
        if self.scheduled_checks.len() >= EXPIRED_MAX {
            return;
        }
        let ends_at = Instant::now() + remaining;
        self.scheduled_checks.insert((ends_at, lease_id), locks);
    }

    /// Returns the locks of leases that have expired since the last call.
    pub(super) fn drain_expired(&mut self) -> Vec<LockKey> {
        self.evict_expired();
        let now = Instant::now();
        let mut expired = std::mem::take(&mut self.expired);
        while let Some(first) = self
            .scheduled_checks
            .first_entry()
            .filter(|first| first.key().0 <= now)
        {
            expired.extend(first.remove());
        }
        expired
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        quotas::Quotas,
        store::stub::{lease_id, lock},
    };

    #[test]
    fn locks_of_expired_leases_are_bounded() {
        let (quotas, caller) = (Quotas::unlimited(), Arc::default());
        let permit = |number: usize| quotas.permit(&caller, &lock(&number.to_string()));
        let permits = (0..=EXPIRED_MAX).map(permit).collect();
        quotas.track_detached(lease_id(0), permits, Duration::ZERO);
        assert_eq!(quotas.drain_expired().len(), EXPIRED_MAX);
        quotas.track_detached(lease_id(0), vec![permit(0)], Duration::ZERO);
        assert_eq!(quotas.drain_expired(), [lock("0")], "there is room again");
    }

    #[test]
    fn leases_that_the_store_still_holds_are_bounded() {
        let quotas = Quotas::unlimited();
        for number in 0..=EXPIRED_MAX {
            quotas.track_until_expiry(lease_id(number), vec![lock("a")], Duration::ZERO);
        }
        assert_eq!(quotas.drain_expired().len(), EXPIRED_MAX);
    }
}
