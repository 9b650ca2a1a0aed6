//! Re-entry: a lease that holds a lock enters it again, and leaves it entry by entry.

use super::{context::Context, entry::Entry, holders::Held, record::Record, tombstones::Dead};
use crate::{
    lock::{Acquire, FencingToken, LeaseRef, Release, RequestHash, Via},
    store::{Acquired, ChangeKind, Released},
};

impl Record {
    /// One more entry of a lease that holds the lock, with that token if one is given. `None`: it
    /// does not hold it. Renews the lease. Never waits, and needs no era: nothing new is granted.
    pub(super) fn enter(
        &mut self,
        context: &Context,
        acquire: &Acquire,
        token: Option<FencingToken>,
    ) -> Option<Acquired> {
        let held = self.holders.by_lease(acquire.lease_id)?;
        if held.place.is_some() || token.is_some_and(|token| token != held.fencing_token) {
            return None;
        }
        let via = acquire
            .stream
            .map_or(Via::Unary, |on| Via::Stream(on.stream));
        let is_elsewhere = via.misses(held.stream.map(|on| on.stream));
        let (weight, hold_count) = (held.weight(), held.entries.len());
        let is_over = held.validity(context.now()).is_none();
        Some(if is_elsewhere {
            Acquired::StaleAttach
        } else if self.has_other_limit(acquire.mode) {
            let limit = self.limit_in_use();
            Acquired::LimitMismatch { limit }
        } else if acquire.mode.weight() > weight {
            Acquired::UpgradeDenied
        } else if is_over {
            Acquired::Ended
        } else if hold_count >= context.entries_max {
            Acquired::TooManyEntries
        } else {
            let entry = Entry::new(acquire, context.broker);
            self.holders.enter(acquire.lease_id, entry);
            self.extend(acquire.lease_id, context.now(), None)
                .map_or(Acquired::Ended, Acquired::Granted)
        })
    }

    /// Takes an entry, or all of them, off a lease that holds the lock. With the last one the lock
    /// is free.
    pub(super) fn leave(&mut self, lease: &LeaseRef, release: Release, now: u64) -> Released {
        let Some(held) = self.holders.by_lease(lease.lease_id) else {
            return Released::NotFound;
        };
        let is_known = match release {
            Release::Entry(request) => held.entry(request).is_some(),
            Release::All | Release::Lapse => true,
        };
        let entries = held.entries.iter().map(|entry| entry.request);
        let over: Vec<_> = match release {
            Release::Entry(request) => vec![request],
            // The memory of released leases refuses repeats of the call that made the lease.
            Release::All if held.added || held.entries.len() > 1 => entries.collect(),
            Release::All | Release::Lapse => Vec::new(),
        };
        for request in over {
            self.tombstones.bury(Dead::Request(request), now);
        }
        if !is_known {
            let hold_count = self.hold_count(lease);
            return Released::Already { hold_count };
        }
        let freed = match release {
            Release::Entry(request) => self.leave_entry(request),
            Release::All => self.free(lease.lease_id),
            Release::Lapse => {
                self.lapse(lease.lease_id, now);
                None
            }
        };
        if let Some(mut freed) = freed {
            self.note_holder(ChangeKind::Released, &freed, now);
            if freed.closes {
                freed.expires_ms = now;
                self.close_after(&freed);
            }
        }
        let hold_count = self.hold_count(lease);
        if hold_count == 0 && release != Release::Lapse {
            self.remember_released(lease.lease_id, now);
        }
        Released::Now { hold_count }
    }

    /// With its last entry a holder is gone.
    pub(super) fn leave_entry(&mut self, request: RequestHash) -> Option<Held> {
        let lease_id = self.holders.leave(request)?;
        self.free(lease_id)
    }

    fn hold_count(&self, lease: &LeaseRef) -> u32 {
        let held = self.holders.by_lease(lease.lease_id);
        held.map_or(0, |held| held.hold_count())
    }
}
