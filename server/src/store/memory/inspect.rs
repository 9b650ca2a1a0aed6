//! Read-only commands on a record: inspection, token check and contention.

use super::{
    context::{Context, Grants},
    holders::HolderSlot,
    record::Record,
};
use crate::{
    lock::{
        CONTENTION_HOLDERS_MAX, CONTENTION_SLOTS_SCANNED_MAX, Contention, EXCLUSIVE_WEIGHT,
        FencingToken, Holder, INSPECT_ENTRIES_MAX, LockState, Mode, PermitUsage, WaiterInfo,
    },
    store::{Checked, Rejected},
};

impl Record {
    /// See [`Store::get`](crate::store::Store::get).
    pub fn get(&self, now_us: u64) -> LockState {
        let now = now_us / 1_000;
        let waiters = self.queue.waiters();
        let waiters = waiters.filter(|(_, waiter)| waiter.until_ms > now);
        let waiters = waiters
            .take(INSPECT_ENTRIES_MAX)
            .map(|(sequence, waiter)| WaiterInfo {
                sequence,
                owner: waiter.owner.clone(),
                mode: Mode::from_stored(waiter.entry.weight, self.limit),
                since_ms: waiter.since_ms,
                remaining_ms: waiter.until_ms - now,
            });
        let holders = || {
            self.holders
                .slots()
                .filter_map(|held| self.to_holder(held?, now))
        };
        let is_limit_set = self.set_limit.is_some();
        let holder_count = u32::try_from(holders().count()).unwrap_or(u32::MAX);
        let is_in_use = is_limit_set || holder_count > 0 || self.queue.len() > 0;
        LockState {
            holders: holders().take(INSPECT_ENTRIES_MAX).collect(),
            holder_count,
            waiters: waiters.collect(),
            queue_length: self.queue.len(),
            closure: self.closure_with_expired(now).map(Box::new),
            permit_usage: (is_in_use && self.limit != EXCLUSIVE_WEIGHT).then(|| PermitUsage {
                limit: self.limit,
                used: holders().map(|holder| holder.mode.weight()).sum(),
                is_limit_set,
            }),
            last_fencing_token: self.last_fencing_token,
        }
    }

    /// See [`Store::check`](crate::store::Store::check).
    pub fn check(&self, context: &Context, token: FencingToken) -> Result<Checked, Rejected> {
        let mut live = self.holders.slots().flatten();
        let live = live.find(|held| held.fencing_token == token);
        match live.and_then(|held| self.to_holder(held, context.now())) {
            Some(Holder { remaining_ms, .. }) => {
                // The store may have lost the end of the lease with its data.
                context.check_era()?;
                Ok(Checked::Live { remaining_ms })
            }
            None if self.last_fencing_token == 0 => Ok(Checked::Unknown),
            None => Ok(Checked::Stale {
                newest: self.last_fencing_token,
            }),
        }
    }

    pub(super) fn contention(&self, now: u64) -> Contention {
        let slots = self.holders.slots().take(CONTENTION_SLOTS_SCANNED_MAX);
        let holders = slots.filter_map(|held| self.to_holder(held?, now));
        Contention {
            holders: holders.take(CONTENTION_HOLDERS_MAX).collect(),
            queue_length: self.queue.len(),
            closure: self.active_closure(now).map(Box::new),
        }
    }

    /// Returns a holder as reported to other callers, or `None` if the holder is provisional or has
    /// expired.
    pub(super) fn to_holder(&self, held: &HolderSlot, now: u64) -> Option<Holder> {
        (held.queue_sequence.is_none() && held.expires_ms > now).then(|| Holder {
            lease_id: held.lease_id,
            owner: held.owner.clone(),
            mode: Mode::from_stored(held.weight(), self.limit),
            fencing_token: held.fencing_token,
            since_ms: held.acquired_ms,
            remaining_ms: held.expires_ms - now,
        })
    }

    /// Returns the time until the lock may have room without a release, if it is known.
    pub(super) fn next_event_ms(&self, context: &Context) -> Option<u64> {
        let remaining = |ms: u64| ms.saturating_sub(context.now());
        let closed_ms = remaining(self.closed_until_ms());
        let next_ms = match (self.holders.len(), context.grants) {
            (1.., _) if closed_ms > 0 => closed_ms,
            (1.., _) => remaining(self.holders.earliest_ms()),
            (0, Grants::NotBefore(ms)) => remaining(ms).max(closed_ms),
            (0, Grants::Never) => closed_ms,
        };
        (next_ms > 0).then_some(next_ms)
    }
}
