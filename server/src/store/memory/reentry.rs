//! Re-entry: further entries of a lease that already holds the lock, and their separate releases.

use super::{
    closure::HoldEnd,
    context::Context,
    entry::Entry,
    holders::{HolderSlot, WeightChange},
    record::Record,
    tombstones::TombstoneKey,
};
use crate::{
    lock::{
        AcquireCommand, ClosureCause, ExpectedAttachment, LeaseBinding, LeaseRef, ReleaseScope,
        RequestHash, expiry_ms,
    },
    store::{Acquired, ChangeKind, LeaseRejection, LeaseReply, Rejected, Released},
};

impl Record {
    /// Adds an entry to the lease of the call, and renews the lease. Returns `None` if the lease
    /// does not hold the lock, or not with the token that the call names. Never waits, and ends the
    /// wait of the call.
    pub(super) fn reenter(
        &mut self,
        context: &Context,
        acquire: &AcquireCommand,
    ) -> Result<Option<Acquired>, Rejected> {
        let is_named = |held: &HolderSlot| match acquire.binding {
            LeaseBinding::New => false,
            LeaseBinding::Existing => true,
            LeaseBinding::Reentry(token) => token == held.fencing_token,
        };
        let is_match = |held: &&HolderSlot| held.queue_sequence.is_none() && is_named(held);
        let Some(held) = self.holders.by_lease(acquire.lease_id).filter(is_match) else {
            return Ok(None);
        };
        let via = acquire.stream.map_or(ExpectedAttachment::None, |on| {
            ExpectedAttachment::Stream(on.stream)
        });
        let is_elsewhere = via.rejects(held.stream.map(|on| on.stream));
        let (weight, hold_count) = (held.weight(), held.entries.len());
        let has_ended = held.validity(context).is_none();
        let span = held.check_span(context, None);
        if is_elsewhere {
            return Ok(Some(Acquired::StaleAttach));
        }
        context.check_era()?;
        span?;
        let waited = self.queue.remove(acquire.request);
        let entered = if self.has_other_limit(acquire.mode) {
            let limit = self.limit_in_use();
            Acquired::LimitMismatch { limit }
        } else if acquire.mode.weight() > weight {
            Acquired::UpgradeDenied
        } else if has_ended {
            Acquired::Ended
        } else if hold_count >= context.bounds.entries_max {
            Acquired::TooManyEntries
        } else {
            let mut entry = Entry::new(acquire, context.broker);
            if let Some(waited) = &waited {
                entry.attempts = waited.attempts_at(acquire.stream);
                let attempts = &mut entry.attempts;
                attempts.add(acquire.attempt, context.broker, context.bounds.attempts_max);
            }
            self.holders.add_entry(acquire.lease_id, entry);
            let extended = self.extend(context, acquire.lease_id, None);
            return Ok(Some(extended.map_or(Acquired::Ended, Acquired::Granted)));
        };
        if let Some(waited) = waited {
            self.record_waiter(ChangeKind::Abandoned, &waited, context.now());
        }
        Ok(Some(entered))
    }

    /// Releases one entry, or all entries, of a lease that holds the lock. Releasing the last entry
    /// frees the lock.
    pub(super) fn release_entries(
        &mut self,
        lease: &LeaseRef,
        release: ReleaseScope,
        context: &Context,
    ) -> LeaseReply<Released> {
        let now = context.now();
        let Some(held) = self.holders.by_lease(lease.lease_id) else {
            return Err(LeaseRejection::NotFound);
        };
        let (until_ms, added) = (now + expiry_ms(held.ttl_ms), held.added_to_lease);
        // After a loss of data the holder may rely on an entry that is not recorded.
        let may_lack_entries = context.has_lost_data_since(held.acquired_ms);
        let change = match may_lack_entries {
            true => WeightChange::None,
            false => WeightChange::ToRemaining,
        };
        let has_entry = match release {
            ReleaseScope::Entry(request) => held.entry(request).is_some(),
            ReleaseScope::All | ReleaseScope::Lock | ReleaseScope::ExpireNow => true,
        };
        let entries = held.entries.iter().map(|entry| entry.request);
        let ended_requests: Vec<_> = match release {
            ReleaseScope::Entry(request) => vec![request],
            // A lease with only the entry that created it needs no tombstone. The list of released
            // leases rejects repeats of that call.
            ReleaseScope::All | ReleaseScope::Lock
                if held.added_to_lease || held.entries.len() > 1 =>
            {
                entries.collect()
            }
            ReleaseScope::All | ReleaseScope::Lock | ReleaseScope::ExpireNow => Vec::new(),
        };
        for request in ended_requests {
            self.tombstones
                .insert(TombstoneKey::Request(request), context);
        }
        if !has_entry {
            return Ok(Released {
                already_released: true,
                hold_count: self.hold_count(lease),
            });
        }
        let freed = match release {
            ReleaseScope::Entry(request) => self.remove_entry(request, change),
            ReleaseScope::All | ReleaseScope::Lock => self.remove_holder(lease.lease_id),
            ReleaseScope::ExpireNow => {
                self.expire_now(lease.lease_id, context);
                None
            }
        };
        if let Some(freed) = freed {
            self.record_holder(ChangeKind::Released, &freed, now);
            if may_lack_entries && matches!(release, ReleaseScope::Entry(_)) {
                self.close_until(ClosureCause::LockDelay, freed.expires_ms, &freed.owner, now);
            }
            self.close_after(&freed, HoldEnd::Released, now);
        } else if matches!(release, ReleaseScope::Entry(_))
            && let Some(held) = self.holders.by_lease(lease.lease_id).cloned()
        {
            self.close_after(&held, HoldEnd::EntryReleased, now);
        }
        let hold_count = self.hold_count(lease);
        let is_partial = matches!(release, ReleaseScope::Lock | ReleaseScope::Entry(_));
        if is_partial {
            // Also if entries are left: the holder may not know of them, and they may be rolled back.
            self.record_partial_release(lease.lease_id, now, until_ms);
        }
        // A lock that was added to a lease may be added to the lease again.
        let may_be_added_again = is_partial && added;
        if hold_count == 0 && !may_be_added_again && release != ReleaseScope::ExpireNow {
            self.record_released(lease.lease_id, context);
        }
        Ok(Released {
            already_released: false,
            hold_count,
        })
    }

    /// Removes an entry, and with the last entry the holder.
    pub(super) fn remove_entry(
        &mut self,
        request: RequestHash,
        change: WeightChange,
    ) -> Option<HolderSlot> {
        let lease_id = self.holders.remove_entry(request, change)?;
        self.remove_holder(lease_id)
    }

    fn hold_count(&self, lease: &LeaseRef) -> u32 {
        let held = self.holders.by_lease(lease.lease_id);
        held.map_or(0, |held| held.hold_count())
    }
}
