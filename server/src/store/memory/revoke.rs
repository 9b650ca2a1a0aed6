//! Taking a lock away from a lease, as an operator's will.

use super::{context::Context, record::Record};
use crate::{
    lock::{Force, LeaseId, Revoke},
    store::{Outcome, Refused, Released, Revoked},
};

impl Record {
    /// See [`Store::revoke`](crate::store::Store::revoke).
    pub fn revoke(
        &mut self,
        context: &Context,
        revoke: &Revoke,
    ) -> Result<Outcome<Revoked>, Refused> {
        context.check_late()?;
        let now = context.now();
        self.expire(context);
        self.expire_lease(context, revoke.lease_id);
        let held = self.holders.by_lease(revoke.lease_id);
        let on = held.and_then(|held| held.stream);
        let Some(holder) = held.and_then(|held| self.seen(held, now)) else {
            return Ok(Outcome::silent(self.not_taken(revoke.lease_id, now)));
        };
        let taken = Revoked::Taken {
            holder: Box::new(holder),
            queue_length: self.queue.len(),
            on,
        };
        if revoke.force == Force::None {
            return Ok(Outcome::silent(taken));
        }
        self.cut(revoke, now);
        if revoke.force == Force::Unsafe {
            self.lapse(revoke.lease_id, now);
        }
        Ok(self.advanced(context, taken))
    }

    /// Lets the lease end with its grace, as a `max_hold` would. Never later than before.
    fn cut(&mut self, revoke: &Revoke, now: u64) {
        let Some(held) = self.holders.by_lease_mut(revoke.lease_id) else {
            return;
        };
        let left_ms = (now + revoke.grace_ms).saturating_sub(held.acquired_ms);
        held.terms.max_hold_ms = match held.terms.max_hold_ms {
            0 => left_ms.max(1),
            max_hold_ms => max_hold_ms.min(left_ms.max(1)),
        };
        if let Some(lock_delay_ms) = revoke.lock_delay_ms {
            held.terms.lock_delay_ms = lock_delay_ms;
            held.closes = true;
        }
        held.revoked = Some(revoke.reason.clone());
    }

    fn not_taken(&self, lease_id: LeaseId, now: u64) -> Revoked {
        match self.ended(lease_id, now) {
            Released::Revoked { .. } => Revoked::Already,
            Released::Expired => Revoked::Expired,
            Released::Already { .. } => Revoked::Released,
            Released::Now { .. } | Released::Elsewhere | Released::NotFound => Revoked::NotFound,
        }
    }
}
