//! What a record shows of itself.

use super::{
    context::{Context, Grants},
    holders::Held,
    record::Record,
};
use crate::{
    lock::{
        Contention, FencingToken, HELD_SHOWN, HELD_SLOTS, Holder, LockState, Mode, SHOWN_MAX,
        Waiting,
    },
    store::{Checked, Refused},
};

impl Record {
    /// See [`Store::get`](crate::store::Store::get).
    pub fn get(&self, now_us: u64) -> LockState {
        let now = now_us / 1_000;
        let waiters = self.queue.waiters();
        let waiters = waiters.filter(|(_, waiter)| waiter.until_ms > now);
        let waiters = waiters.take(SHOWN_MAX).map(|(place, waiter)| Waiting {
            place,
            owner: waiter.owner.clone(),
            mode: Mode::from_stored(waiter.entry.weight, self.limit_in_use()),
            since_ms: waiter.since_ms,
            remaining_ms: waiter.until_ms - now,
        });
        let holders = || {
            self.holders
                .slots()
                .filter_map(|held| self.seen(held?, now))
        };
        LockState {
            holders: holders().take(SHOWN_MAX).collect(),
            holder_count: u32::try_from(holders().count()).unwrap_or(u32::MAX),
            waiters: waiters.collect(),
            queue_length: self.queue.len(),
            closed_ms: self.closed_until_ms(now).saturating_sub(now),
            last_fencing_token: self.fence,
        }
    }

    /// See [`Store::check`](crate::store::Store::check).
    pub fn check(&self, context: &Context, token: FencingToken) -> Result<Checked, Refused> {
        let mut live = self.holders.slots().flatten();
        let live = live.find(|held| held.fencing_token == token);
        match live.and_then(|held| self.seen(held, context.now())) {
            Some(Holder { remaining_ms, .. }) => {
                // It may have ended before the store lost data.
                context.check_era()?;
                Ok(Checked::Live { remaining_ms })
            }
            None if self.fence == 0 => Ok(Checked::Unknown),
            None => Ok(Checked::Stale { newest: self.fence }),
        }
    }

    pub(super) fn contention(&self, now: u64) -> Contention {
        let slots = self.holders.slots().take(HELD_SLOTS);
        let holders = slots.filter_map(|held| self.seen(held?, now));
        Contention {
            holders: holders.take(HELD_SHOWN).collect(),
            queue_length: self.queue.len(),
            closed_ms: self.closed_until_ms.saturating_sub(now),
        }
    }

    /// Also by holders whose expiry no command has noticed yet.
    fn closed_until_ms(&self, now: u64) -> u64 {
        let over = self.holders.slots().flatten();
        let over = over.filter(|held| held.place.is_none() && held.expires_ms <= now);
        over.filter_map(Held::closes_until_ms)
            .fold(self.closed_until_ms, u64::max)
    }

    /// A holder as others may see it; a provisional one is none yet.
    pub(super) fn seen(&self, held: &Held, now: u64) -> Option<Holder> {
        (held.place.is_none() && held.expires_ms > now).then(|| Holder {
            lease_id: held.lease_id,
            owner: held.owner.clone(),
            mode: Mode::from_stored(held.weight(), self.limit_in_use()),
            fencing_token: held.fencing_token,
            since_ms: held.acquired_ms,
            remaining_ms: held.expires_ms - now,
        })
    }

    /// When the lock may have room by itself; 0: nobody can tell.
    pub(super) fn next_event_ms(&self, context: &Context) -> u64 {
        let left = |ms: u64| ms.saturating_sub(context.now());
        let closed_ms = left(self.closed_until_ms);
        match (self.holders.len(), context.grants) {
            (1.., _) if closed_ms > 0 => closed_ms,
            (1.., _) => left(self.holders.earliest_ms()),
            (0, Grants::NotBefore(ms)) => left(ms).max(closed_ms),
            (0, Grants::Never) => closed_ms,
        }
    }
}
