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
/// The expiry of the longest validity, an hour, and a little.
const PART_MAX_MS: u64 = 4_330_000;

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

/// From before the clock was set back: it counts for nothing.
fn is_ahead(at_ms: u64, now: u64) -> bool {
    at_ms > now + 2 * FORGET_MS
}

/// A time that is far ahead is from before the clock was set back.
fn keeps_part(until_ms: u64, now: u64) -> bool {
    until_ms > now && until_ms <= now + PART_MAX_MS
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
        let is_young = |at_ms| at_ms + age_ms > now && !is_ahead(at_ms, now);
        self.leases
            .get(lease_id)
            .is_some_and(|known| known.seq + newest > self.last || is_young(known.at_ms))
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
        } else if self.was_expired(lease_id, now) {
            // First: it may have been added again after a release, not after this.
            let reason = self.expired.reason(&lease_id);
            reason.map_or(Released::Expired, |reason| Released::Revoked { reason })
        } else if self.was_released(lease_id, now) {
            Released::Already { hold_count: 0 }
        } else {
            Released::NotFound
        }
    }

    /// What the call made or entered is over.
    pub(super) fn is_over(&self, acquire: &Acquire, now: u64) -> bool {
        let lease_id = acquire.lease_id;
        let holds = self.holders.by_lease(lease_id).is_some();
        self.tombstones.knows(Dead::Request(acquire.request), now)
            || self.was_expired(lease_id, now)
            || match acquire.under {
                Under::NewLease => holds || self.is_newly_released(lease_id, now),
                Under::Lease => false,
                Under::Grant(_) => !holds && self.was_released(lease_id, now),
            }
    }

    /// The lock was released from the lease, which may have others or not.
    fn was_released(&self, lease_id: LeaseId, now: u64) -> bool {
        let parts = &self.parts;
        parts.get(&lease_id).is_some_and(|at| keeps_part(*at, now))
            || self.is_newly_released(lease_id, now)
    }

    fn is_newly_released(&self, lease_id: LeaseId, now: u64) -> bool {
        self.released
            .knows(&lease_id, RELEASED_MAX, now, TOMBSTONE_MS)
    }

    fn was_expired(&self, lease_id: LeaseId, now: u64) -> bool {
        self.expired
            .remembers(&lease_id, EXPIRED_MAX, now, EXPIRED_MS)
    }

    pub(super) fn remember_released(&mut self, lease_id: LeaseId, now: u64) {
        self.released.remember(lease_id, now, None);
        let is_young = |at| at + TOMBSTONE_MS > now && !is_ahead(at, now);
        self.released
            .forget(|seq, at, last| seq + RELEASED_MAX > last || is_young(at));
    }

    /// Remembers that the lock was released from a lease that may have others, until that cannot be shown
    /// with this lock any more.
    pub(super) fn remember_part(&mut self, lease_id: LeaseId, now: u64, until_ms: u64) {
        self.parts.retain(|_, at| keeps_part(*at + FORGET_MS, now));
        self.parts.insert(lease_id, until_ms);
    }

    pub(super) fn remember_expired(&mut self, held: &Held, now: u64) {
        self.expired
            .remember(held.lease_id, held.expires_ms, held.revoked.clone());
        self.expired
            .forget(|seq, at, last| seq + EXPIRED_MAX > last && at + EXPIRED_MS > now);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;
    use crate::{
        lock::{BrokerId, LeaseRef, Via, expiry_ms},
        store::{
            Acquired, Renewed, Store as _,
            memory::Memory,
            stub::{acquire, lock},
        },
    };

    #[tokio::test(start_paused = true)]
    async fn so_many_expired_leases_are_remembered() {
        let store = Memory::new(Duration::ZERO).connect(BrokerId::random());
        let most = usize::try_from(EXPIRED_MAX).expect("few");
        let mut leases = Vec::new();
        for number in 0..=most {
            let call = acquire(&lock("a"), number);
            let Ok(Acquired::Granted(grant)) = store.acquire(&call).await else {
                panic!("{number} is not granted");
            };
            leases.push(LeaseRef {
                lock: call.lock,
                lease_id: call.lease_id,
                fencing_token: grant.fencing_token,
            });
            if number + 1 >= most {
                advance(Duration::from_millis(expiry_ms(call.ttl.as_millis()))).await;
            }
        }
        let mut remembered = 0;
        for lease in &leases {
            let renewed = store.renew(lease, None, Via::Anywhere).await;
            remembered += usize::from(renewed == Ok(Renewed::Expired));
        }
        assert_eq!(remembered, most);
    }
}
