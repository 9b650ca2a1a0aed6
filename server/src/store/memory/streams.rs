//! Attachment of leases to lease streams.

use super::{context::Context, record::Record};
use crate::{
    lock::{Attachment, ExpectedAttachment, Grant, LeaseId, LeaseRef},
    store::{LeaseRejection, LeaseReply, MovedLease, Outcome, Rejected},
};

impl Record {
    /// See [`Store::attach`](crate::store::Store::attach).
    pub fn attach(
        &mut self,
        context: &Context,
        lease: &LeaseRef,
        to: Attachment,
    ) -> Result<Outcome<LeaseReply<Grant>>, Rejected> {
        context.check_deadline()?;
        self.expire(context);
        self.expire_lease(context, lease.lease_id);
        let held = self.holders.by_lease(lease.lease_id);
        let Some(held) = held.filter(|held| held.matches(lease) && held.queue_sequence.is_none())
        else {
            return Ok(Outcome::reply_only(Err(self.ended(lease, context))));
        };
        let Ok(attachment) = Attachment::supersede(held.stream, Some(to)) else {
            return Ok(Outcome::reply_only(Err(LeaseRejection::Elsewhere)));
        };
        let Some(grant) = self.grant_of(context, lease.lease_id) else {
            let rejection = self.hold_limit_rejection(lease.lease_id);
            return Ok(Outcome::reply_only(Err(rejection)));
        };
        // The lease may have ended after its disconnect grace, and the store may have lost that end
        // with its data.
        if grant.disconnect_grace_ms.is_some() {
            context.check_era()?;
        }
        Ok(Outcome {
            moved: self.attach_to(lease.lease_id, attachment),
            ..Outcome::reply_only(Ok(grant))
        })
    }

    /// Attaches a lease to a stream, and returns the stream that the lease left.
    pub(super) fn attach_to(
        &mut self,
        lease_id: LeaseId,
        stream: Option<Attachment>,
    ) -> Option<MovedLease> {
        let held = self.holders.by_lease_mut(lease_id)?;
        let from = std::mem::replace(&mut held.stream, stream);
        let has_moved = |from: &Attachment| stream.is_none_or(|to| to.stream != from.stream);
        from.filter(has_moved)
            .map(|from| MovedLease { lease_id, from })
    }

    /// Returns true if the lease holds the lock, but its attachment does not allow the change.
    pub(super) fn is_on_other_stream(&self, lease: &LeaseRef, via: ExpectedAttachment) -> bool {
        let held = self.holders.by_lease(lease.lease_id);
        held.is_some_and(|held| via.rejects(held.stream.map(|attachment| attachment.stream)))
    }
}
