//! Revocation of a lease's hold on a lock by an operator.

use super::{context::Context, record::Record};
use crate::{
    lock::{LeaseId, RevokeCommand, RevokeMode},
    store::{LeaseRejection, LeaseReply, Outcome, Rejected, Revoked, RevokedLease},
};

impl Record {
    /// See [`Store::revoke`](crate::store::Store::revoke).
    pub fn revoke(
        &mut self,
        context: &Context,
        revoke: &RevokeCommand,
    ) -> Result<Outcome<LeaseReply<Revoked>>, Rejected> {
        context.check_deadline()?;
        let now = context.now();
        self.expire(context);
        self.expire_lease(context, revoke.lease_id);
        let held = self.holders.by_lease(revoke.lease_id);
        let on = held.and_then(|held| held.stream);
        let Some(holder) = held.and_then(|held| self.to_holder(held, now)) else {
            return Ok(Outcome::reply_only(
                self.not_revoked(revoke.lease_id, context),
            ));
        };
        let revoked = Ok(Revoked::Taken(RevokedLease {
            holder: Box::new(holder),
            queue_length: self.queue.len(),
            on,
        }));
        if revoke.mode == RevokeMode::DryRun {
            return Ok(Outcome::reply_only(revoked));
        }
        self.cap_max_hold(revoke, now);
        if revoke.mode == RevokeMode::Immediate {
            self.expire_now(revoke.lease_id, context);
        }
        Ok(self.grant_and_reply(context, revoked))
    }

    /// Limits the hold to the grace by lowering its `max_hold`. Never prolongs the hold.
    fn cap_max_hold(&mut self, revoke: &RevokeCommand, now: u64) {
        let Some(held) = self.holders.by_lease_mut(revoke.lease_id) else {
            return;
        };
        let hold_limit_ms = (now + revoke.grace_ms)
            .saturating_sub(held.acquired_ms)
            .max(1);
        let max_hold_ms = held.options.max_hold_ms.unwrap_or(u64::MAX);
        held.options.max_hold_ms = Some(max_hold_ms.min(hold_limit_ms));
        if let Some(lock_delay_ms) = revoke.lock_delay_ms {
            held.options.lock_delay_ms = lock_delay_ms;
            held.has_lock_delay = true;
        }
        held.revoke_reason = Some(revoke.reason.clone());
    }

    fn not_revoked(&self, lease_id: LeaseId, context: &Context) -> LeaseReply<Revoked> {
        let rejection = self.ended_lease(lease_id, context);
        match matches!(rejection, LeaseRejection::Revoked { .. }) {
            true => Ok(Revoked::Already),
            false => Err(rejection),
        }
    }
}
