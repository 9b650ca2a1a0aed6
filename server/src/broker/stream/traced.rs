//! What becomes of a lease on a stream, as short spans that lead back to the call by which it came: the lease itself
//! may last for hours, and is none.

use super::{Ended, Stream, owned::Owned, spans};
use crate::{
    history::EndReason,
    lock::LeaseId,
    trace::{Origin, Traced},
};

impl Stream {
    /// A lease is here, by this call.
    pub(super) fn came_of(&mut self, lease_id: LeaseId, origin: Option<Box<Origin>>) {
        let Some(owned) = self.leases.get_mut(&lease_id) else {
            return;
        };
        if origin.is_some() {
            owned.origin = origin;
            owned.event("lease.granted", lease_id).end();
        }
    }
}

impl Owned {
    /// Something has begun that has to do with the lease.
    pub(super) fn event(&self, name: &'static str, lease_id: LeaseId) -> Traced {
        let origin = self.origin.as_ref();
        let traced = origin.map(|origin| origin.event(name)).unwrap_or_default();
        if traced.is_recording() {
            spans::about(&traced, self.locks.iter().map(|held| &held.lock));
            spans::lease_id(&traced, lease_id);
        }
        traced
    }

    /// A renewal was answered. One that fails is tried again and again: the first is told.
    pub(super) fn trace_renewal(&mut self, lease_id: LeaseId, is_renewed: bool) {
        let Some(origin) = &mut self.origin else {
            return;
        };
        if is_renewed {
            origin.succeeds();
        } else if origin.fails() {
            let traced = self.event("lease.renewal_failed", lease_id);
            traced.fail("not renewed");
            traced.end();
        }
    }

    /// The lease is over, or elsewhere. Of what the store will end `broker/ends.rs` tells then: that
    /// may be on no stream.
    pub(super) fn trace_end(&self, lease_id: LeaseId, why: &Ended) {
        match why {
            Ended::Released => self.ended(lease_id, "released"),
            Ended::Moved => self.ended(lease_id, "moved"),
            Ended::Lost => {
                let traced = self.event("lease.lost", lease_id);
                let reason = EndReason::StoreLost;
                spans::lost(&traced, reason, reason.why().to_owned());
                traced.end();
            }
            Ended::Expired
            | Ended::MaxHold
            | Ended::Revoked { .. }
            | Ended::CredentialExpired
            | Ended::Denied => {}
        }
    }

    fn ended(&self, lease_id: LeaseId, reason: &'static str) {
        let traced = self.event("lease.ended", lease_id);
        traced.note("leasehold.reason", reason);
        traced.end();
    }
}
