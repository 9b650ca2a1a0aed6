//! What the weights of a lock's holders may add up to, and who says so.

use super::{context::Context, record::Record};
use crate::{
    lock::{Acquire, Mode, WHOLE},
    store::{Acquired, LimitSet, Outcome, Refused},
};

impl Record {
    /// See [`Store::set_limit`](crate::store::Store::set_limit).
    pub fn set_limit(
        &mut self,
        context: &Context,
        limit: Option<u32>,
    ) -> Result<Outcome<LimitSet>, Refused> {
        context.check_late()?;
        self.expire(context);
        let Some(limit) = limit else {
            let previous = std::mem::take(&mut self.set_limit);
            return Ok(self.advanced(context, LimitSet::Set { previous }));
        };
        let previous = self.limit_in_use();
        if previous == WHOLE {
            return Ok(Outcome::silent(LimitSet::Mismatch));
        }
        self.limit = limit;
        self.set_limit = limit;
        Ok(self.advanced(context, LimitSet::Set { previous }))
    }

    /// A lock that nobody holds or waits for takes the limit of the call.
    pub(super) fn check_limit(&mut self, acquire: &Acquire) -> Result<(), Acquired> {
        let in_use = self.limit_in_use();
        if in_use == 0 {
            self.limit = acquire.mode.limit();
        }
        if self.has_other_limit(acquire.mode) || acquire.mode.weight() > self.limit {
            return Err(Acquired::LimitMismatch { limit: in_use });
        }
        Ok(())
    }

    /// The lock is in use with another limit than this mode's.
    pub(super) fn has_other_limit(&self, mode: Mode) -> bool {
        let (in_use, wanted) = (self.limit_in_use(), mode.limit());
        match self.set_limit {
            0 => in_use > 0 && wanted != in_use && (wanted > 0 || in_use == WHOLE),
            _ => wanted == WHOLE,
        }
    }

    /// 0 while nobody holds the lock or waits for it, and none is set.
    pub(super) fn limit_in_use(&self) -> u32 {
        match self.holders.len() > 0 || self.queue.len() > 0 {
            true => self.limit,
            false => self.set_limit,
        }
    }
}
