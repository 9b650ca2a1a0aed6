//! The limit of a lock, as requested by its callers or fixed by an operator.

use super::{context::Context, record::Record};
use crate::{
    lock::{AcquireCommand, EXCLUSIVE_WEIGHT, Mode},
    store::{Acquired, LimitSet, Outcome, Rejected},
};

impl Record {
    /// See [`Store::set_limit`](crate::store::Store::set_limit).
    pub fn set_limit(
        &mut self,
        context: &Context,
        limit: Option<u32>,
    ) -> Result<Outcome<LimitSet>, Rejected> {
        context.check_deadline()?;
        self.expire(context);
        let Some(limit) = limit else {
            let previous = self.set_limit.take();
            return Ok(self.grant_and_reply(context, LimitSet::Set { previous }));
        };
        let previous = self.limit_in_use();
        if previous == Some(EXCLUSIVE_WEIGHT) {
            return Ok(Outcome::reply_only(LimitSet::Mismatch));
        }
        self.limit = limit;
        self.set_limit = Some(limit);
        Ok(self.grant_and_reply(context, LimitSet::Set { previous }))
    }

    /// Checks the limit and weight of a call. An idle lock without a fixed limit gets the limit of
    /// the call.
    pub(super) fn check_limit(&mut self, acquire: &AcquireCommand) -> Result<(), Acquired> {
        let in_use = self.limit_in_use();
        if in_use.is_none() {
            self.limit = acquire.mode.limit();
        }
        if self.has_other_limit(acquire.mode) || acquire.mode.weight() > self.limit {
            return Err(Acquired::LimitMismatch { limit: in_use });
        }
        Ok(())
    }

    /// Returns true if the lock is in use with another limit than that of `mode`.
    pub(super) fn has_other_limit(&self, mode: Mode) -> bool {
        let requested = mode.limit();
        match (self.set_limit, self.limit_in_use()) {
            (Some(_), _) => requested == EXCLUSIVE_WEIGHT,
            (None, Some(in_use)) => {
                requested != in_use && (requested > 0 || in_use == EXCLUSIVE_WEIGHT)
            }
            (None, None) => false,
        }
    }

    /// Returns the limit in use. `None` if no limit is fixed and the lock has no holder and no
    /// waiter.
    pub(super) fn limit_in_use(&self) -> Option<u32> {
        match self.holders.len() > 0 || self.queue.len() > 0 {
            true => Some(self.limit),
            false => self.set_limit,
        }
    }
}
