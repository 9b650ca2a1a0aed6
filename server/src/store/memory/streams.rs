//! Leases on streams: which one each is on, and who may move or change it.

use super::{context::Context, record::Record};
use crate::{
    lock::{Attachment, LeaseId, LeaseRef, Via},
    store::{Attached, Moved, Outcome, Refused, Released},
};

impl Record {
    /// See [`Store::attach`](crate::store::Store::attach).
    pub fn attach(
        &mut self,
        context: &Context,
        lease: &LeaseRef,
        to: Attachment,
    ) -> Result<Outcome<Attached>, Refused> {
        context.check_late()?;
        let now = context.now();
        self.expire(context);
        self.expire_lease(context, lease.lease_id);
        let held = self.holders.by_lease(lease.lease_id);
        let Some(held) = held.filter(|held| held.is(lease) && held.place.is_none()) else {
            return Ok(Outcome::silent(match self.ended(lease.lease_id, now) {
                Released::Already { .. } => Attached::Released,
                Released::Expired => Attached::Expired,
                Released::Revoked { reason } => Attached::Revoked { reason },
                Released::Now { .. } | Released::Elsewhere | Released::NotFound => {
                    Attached::NotFound
                }
            }));
        };
        let there = Attachment::moved(held.stream, Some(to));
        let (Some(there), Some(grant)) = (there, self.grant_of(lease.lease_id, now)) else {
            return Ok(Outcome::silent(
                match (there, self.revoked(lease.lease_id)) {
                    (None, _) => Attached::Stale,
                    (Some(_), Some(reason)) => Attached::Revoked { reason },
                    (Some(_), None) => Attached::MaxHold,
                },
            ));
        };
        // It may have lapsed a moment after its stream broke.
        if grant.disconnect_grace_ms.is_some() {
            context.check_era()?;
        }
        Ok(Outcome {
            moved: self.put_on(lease.lease_id, there),
            ..Outcome::silent(Attached::Attached(grant))
        })
    }

    /// Puts a lease on a stream; says which one it left.
    pub(super) fn put_on(
        &mut self,
        lease_id: LeaseId,
        stream: Option<Attachment>,
    ) -> Option<Moved> {
        let held = self.holders.by_lease_mut(lease_id)?;
        let from = std::mem::replace(&mut held.stream, stream);
        let left = |from: &Attachment| stream.is_none_or(|to| to.stream != from.stream);
        from.filter(left).map(|from| Moved { lease_id, from })
    }

    /// The lease holds the lock, but may not be changed from there.
    pub(super) fn is_out_of_reach(&self, lease: &LeaseRef, via: Via) -> bool {
        let held = self.holders.by_lease(lease.lease_id);
        held.is_some_and(|held| via.misses(held.stream.map(|attachment| attachment.stream)))
    }
}
