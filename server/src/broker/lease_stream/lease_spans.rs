//! Spans of the events of a lease on a stream. Each span is short and linked to the call that
//! acquired the lease. The lease itself has no span, because it may last for hours.

use super::{LeaseEndedReason, LeaseStream, leases::StreamLease, spans};
use crate::{
    lock::LeaseId,
    recent_events::LeaseEndReason,
    trace::{LinkedSpan, Span},
};

impl LeaseStream {
    /// Records the call by which the lease came to the stream.
    pub(super) fn set_origin(&mut self, lease_id: LeaseId, origin: Option<Box<LinkedSpan>>) {
        let Some(lease) = self.leases.get_mut(&lease_id) else {
            return;
        };
        if origin.is_some() {
            lease.origin = origin;
            lease.event("lease.granted", lease_id).end();
        }
    }
}

impl StreamLease {
    /// Starts a span for an event of the lease.
    pub(super) fn event(&self, name: &'static str, lease_id: LeaseId) -> Span {
        let origin = self.origin.as_ref();
        let span = origin.map(|origin| origin.event(name)).unwrap_or_default();
        if span.is_recording() {
            spans::record_locks(&span, self.locks.iter().map(|held| &held.lock));
            spans::lease_id(&span, lease_id);
        }
        span
    }

    /// Records the result of a renewal. Only the first failure of consecutive retries gets a span.
    pub(super) fn trace_renewal(&mut self, lease_id: LeaseId, is_renewed: bool) {
        let Some(origin) = &mut self.origin else {
            return;
        };
        if is_renewed {
            origin.reset_failure();
        } else if origin.first_failure() {
            let span = self.event("lease.renewal_failed", lease_id);
            span.set_error("renewal failed");
            span.end();
        }
    }

    /// Creates a span for the end of the lease on this stream. An end that the store will report is
    /// span by `broker/lease_ends.rs`, because the lease may be on no stream at that time.
    pub(super) fn trace_end(&self, lease_id: LeaseId, ended_reason: &LeaseEndedReason) {
        match ended_reason {
            LeaseEndedReason::Released => self.ended_event(lease_id, "released"),
            LeaseEndedReason::Moved => self.ended_event(lease_id, "moved"),
            LeaseEndedReason::Lost => {
                let span = self.event("lease.lost", lease_id);
                let reason = LeaseEndReason::StoreLost;
                spans::record_loss(&span, reason, reason.explanation().to_owned());
                span.end();
            }
            LeaseEndedReason::Expired
            | LeaseEndedReason::MaxHold
            | LeaseEndedReason::Revoked { .. }
            | LeaseEndedReason::CredentialExpired
            | LeaseEndedReason::Denied => {}
        }
    }

    fn ended_event(&self, lease_id: LeaseId, reason: &'static str) {
        let span = self.event("lease.ended", lease_id);
        span.set_attribute("leasehold.reason", reason);
        span.end();
    }
}
