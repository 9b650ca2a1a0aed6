//! The closure of a lock: how ended leases and operators close the lock, and how operators open it.
//!
//! A lock has one closure, the one that ends last.

use super::{context::Context, holders::HolderSlot, record::Record};
use crate::{
    lock::{ActiveClosure, CloseCommand, Closure, ClosureCause, Owner},
    store::{ChangeKind, Outcome, Rejected},
};

/// End of a hold, as far as closures are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HoldEnd {
    /// The lease expired or was revoked. The lock delay of the holder applies.
    Expired,
    /// The holder released the lock. The lock delay applies only if an operator requested that.
    Released,
    /// The holder released an entry and has others left, which may be rolled back: the end of the
    /// hold may then close nothing.
    EntryReleased,
}

impl Record {
    /// See [`Store::close`](crate::store::Store::close).
    pub fn close(
        &mut self,
        context: &Context,
        close: &CloseCommand,
    ) -> Result<Outcome<Option<ActiveClosure>>, Rejected> {
        context.check_deadline()?;
        context.check_known_era()?;
        let now = context.now();
        self.expire(context);
        self.close_until(ClosureCause::Operator, close.until_ms, &close.operator, now);
        let closure = self.active_closure(now);
        Ok(self.grant_and_reply(context, closure))
    }

    /// See [`Store::open`](crate::store::Store::open).
    pub fn open(&mut self, context: &Context) -> Result<Outcome<Option<ActiveClosure>>, Rejected> {
        context.check_deadline()?;
        context.check_known_era()?;
        let now = context.now();
        self.expire(context);
        let closure = self.active_closure(now);
        self.closure = None;
        if let Some(ActiveClosure { closure, .. }) = &closure {
            self.record_closure(ChangeKind::Opened, closure, now);
        }
        Ok(self.grant_and_reply(context, closure))
    }

    /// Closes the lock after a hold that has ended.
    pub(super) fn close_after(&mut self, held: &HolderSlot, end: HoldEnd, now: u64) {
        for (cause, until_ms) in held.closures(end, now) {
            self.close_until(cause, until_ms, &held.owner, now);
        }
    }

    /// Closes the lock until a time, unless that time has passed or the lock is closed for longer.
    pub(super) fn close_until(
        &mut self,
        cause: ClosureCause,
        until_ms: u64,
        owner: &Owner,
        now: u64,
    ) {
        if until_ms <= now.max(self.closed_until_ms()) {
            return;
        }
        let closure = Closure {
            cause,
            until_ms,
            owner: owner.clone(),
        };
        self.record_closure(ChangeKind::Closed, &closure, now);
        self.closure = Some(closure);
    }

    /// Returns the end of the closure, which may have passed; 0 if there is none.
    pub(super) fn closed_until_ms(&self) -> u64 {
        self.closure.as_ref().map_or(0, |closure| closure.until_ms)
    }

    /// Returns true if the record has a closure, which may have passed.
    pub fn has_closure(&self) -> bool {
        self.closure.is_some()
    }

    pub(super) fn active_closure(&self, now: u64) -> Option<ActiveClosure> {
        self.closure.as_ref()?.active_at(now)
    }

    /// Returns the closure, including those of expired holders that no command has removed yet.
    pub(super) fn closure_with_expired(&self, now: u64) -> Option<ActiveClosure> {
        let mut latest = self.closure.clone();
        let expired = self.holders.slots().flatten();
        let expired =
            expired.filter(|held| held.queue_sequence.is_none() && held.expires_ms <= now);
        for held in expired {
            for (cause, until_ms) in held.closures(HoldEnd::Expired, now) {
                if latest
                    .as_ref()
                    .is_none_or(|latest| until_ms > latest.until_ms)
                {
                    let owner = held.owner.clone();
                    latest = Some(Closure {
                        cause,
                        until_ms,
                        owner,
                    });
                }
            }
        }
        latest?.active_at(now)
    }
}

impl HolderSlot {
    /// Returns the causes for which the holder closes the lock after its hold, with their ends.
    fn closures(&self, end: HoldEnd, now: u64) -> impl Iterator<Item = (ClosureCause, u64)> {
        let delay_from_ms = match end {
            HoldEnd::Expired => Some(self.expires_ms),
            HoldEnd::Released => self.has_lock_delay.then_some(now),
            HoldEnd::EntryReleased => None,
        };
        let delay_ms = self.options.lock_delay_ms;
        let delay = delay_from_ms.filter(|_| delay_ms > 0);
        let delay = delay.map(|from_ms| (ClosureCause::LockDelay, from_ms + delay_ms));
        let at_least_ms = self.options.at_least_ms;
        let at_least =
            (at_least_ms > 0).then(|| (ClosureCause::AtLeast, self.acquired_ms + at_least_ms));
        delay.into_iter().chain(at_least)
    }
}
