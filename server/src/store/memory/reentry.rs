//! Re-entry: a lease that holds a lock enters it again, and leaves it entry by entry.

use super::{context::Context, entry::Entry, holders::Held, record::Record, tombstones::Dead};
use crate::{
    lock::{Acquire, LeaseRef, Release, RequestHash, Under, Via, expiry_ms},
    store::{Acquired, ChangeKind, Refused, Released},
};

impl Record {
    /// One more entry of the lease that the call names, if that holds the lock, with the token that the call
    /// names. `None`: it does not hold it. Renews the lease. Never waits, and ends the wait of the call.
    pub(super) fn enter_under(
        &mut self,
        context: &Context,
        acquire: &Acquire,
    ) -> Result<Option<Acquired>, Refused> {
        let is_named = |held: &Held| match acquire.under {
            Under::NewLease => false,
            Under::Lease => true,
            Under::Grant(token) => token == held.fencing_token,
        };
        let is_it = |held: &&Held| held.place.is_none() && is_named(held);
        let Some(held) = self.holders.by_lease(acquire.lease_id).filter(is_it) else {
            return Ok(None);
        };
        let via = acquire
            .stream
            .map_or(Via::Unary, |on| Via::Stream(on.stream));
        let is_elsewhere = via.misses(held.stream.map(|on| on.stream));
        let (weight, hold_count) = (held.weight(), held.entries.len());
        let is_over = held.validity(context.now()).is_none();
        if is_elsewhere {
            return Ok(Some(Acquired::StaleAttach));
        }
        context.check_era()?;
        let waited = self.queue.remove(acquire.request);
        let entered = if self.has_other_limit(acquire.mode) {
            let limit = self.limit_in_use();
            Acquired::LimitMismatch { limit }
        } else if acquire.mode.weight() > weight {
            Acquired::UpgradeDenied
        } else if is_over {
            Acquired::Ended
        } else if hold_count >= context.entries_max {
            Acquired::TooManyEntries
        } else {
            let mut entry = Entry::new(acquire, context.broker);
            if let Some(waited) = &waited {
                entry.attempts = waited.attempts_at(acquire.stream);
                let attempts = &mut entry.attempts;
                attempts.add(acquire.attempt, context.broker, context.attempts_max);
            }
            self.holders.enter(acquire.lease_id, entry);
            let extended = self.extend(acquire.lease_id, context.now(), None);
            return Ok(Some(extended.map_or(Acquired::Ended, Acquired::Granted)));
        };
        if let Some(waited) = waited {
            self.note_waiter(ChangeKind::Abandoned, &waited, context.now());
        }
        Ok(Some(entered))
    }

    /// Takes an entry, or all of them, off a lease that holds the lock. With the last one the lock
    /// is free.
    pub(super) fn leave(&mut self, lease: &LeaseRef, release: Release, now: u64) -> Released {
        let Some(held) = self.holders.by_lease(lease.lease_id) else {
            return Released::NotFound;
        };
        let (shown_until_ms, added) = (now + expiry_ms(held.ttl_ms), held.added);
        let is_known = match release {
            Release::Entry(request) => held.entry(request).is_some(),
            Release::All | Release::Lock | Release::Lapse => true,
        };
        let entries = held.entries.iter().map(|entry| entry.request);
        let over: Vec<_> = match release {
            Release::Entry(request) => vec![request],
            // The memory of released leases refuses repeats of the call that made the lease.
            Release::All | Release::Lock if held.added || held.entries.len() > 1 => {
                entries.collect()
            }
            Release::All | Release::Lock | Release::Lapse => Vec::new(),
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
            Release::All | Release::Lock => self.free(lease.lease_id),
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
        match release {
            _ if hold_count > 0 => {}
            Release::All => self.remember_released(lease.lease_id, now),
            Release::Lock | Release::Entry(_) => {
                self.remember_part(lease.lease_id, now, shown_until_ms);
                // A part that was added may be added again.
                if !added {
                    self.remember_released(lease.lease_id, now);
                }
            }
            Release::Lapse => {}
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
