//! Records of lease ends: each end of a hold is stored, counted and logged once, and each lost
//! lease is traced.
//!
//! Exactly one component reports each kind of end, so that no end is reported twice:
//! * A release is reported by the broker that executed it.
//! * An expired hold, whatever the reason, is reported by the broker whose command detected the
//!   expiry ([`Event::Ended`](crate::store::Event::Ended)). This is independent of the message that
//!   a stream sends to its client.
//! * A hold that the store has lost is reported by the stream whose renewal detected the loss.
//! * A hold whose stream has an expired credential, or that the rules forbid, is not renewed and
//!   expires in the store. The stream records the reason beforehand with
//!   [`LeaseEndRecorder::set_end_reason`], and the report of the expiry uses that reason.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::Hash,
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use tracing::{debug, warn};

use super::spans;
use crate::{
    lock::{LeaseId, LeaseRef, LockKey},
    metrics::Metrics,
    recent_events::{LeaseEnd, LeaseEndReason, RecentEvents},
    store::{LeaseEndCause, LeaseEndEvent},
    time::{millis, unix_time},
    trace::{Span, Tracing},
};

/// Maximum number of reported losses, and of recorded reasons, that are kept.
const SEEN_MAX: usize = 4_096;

/// Recorder of lease ends.
pub(super) struct LeaseEndRecorder {
    history: Arc<RecentEvents>,
    metrics: Metrics,
    tracing: Tracing,
    seen: Mutex<SeenEnds>,
}

#[derive(Default)]
struct SeenEnds {
    /// Losses that were reported.
    reported: HashSet<(LeaseId, u64)>,
    reported_order: VecDeque<(LeaseId, u64)>,
    /// Leases that the broker has stopped renewing, with the reason.
    end_reasons: HashMap<LeaseId, &'static str>,
    end_reasons_order: VecDeque<LeaseId>,
}

impl LeaseEndRecorder {
    pub(super) fn new(history: Arc<RecentEvents>, metrics: Metrics, tracing: Tracing) -> Self {
        Self {
            history,
            metrics,
            tracing,
            seen: Mutex::default(),
        }
    }

    pub(super) fn released(&self, held: &LeaseRef) {
        self.record(end_of(held, LeaseEndReason::Released));
    }

    /// Records the loss of a lease that was on a stream and that the store no longer has.
    pub(super) fn lost(&self, held: &LeaseRef) {
        self.record(end_of(held, LeaseEndReason::StoreLost));
    }

    /// Records the reason for which the broker stops renewing a lease.
    pub(super) fn set_end_reason(&self, lease_id: LeaseId, reason: &'static str) {
        let mut seen = self.seen.lock();
        let SeenEnds {
            end_reasons,
            end_reasons_order: order,
            ..
        } = &mut *seen;
        if end_reasons.insert(lease_id, reason).is_none() {
            let oldest = push_bounded(order, lease_id);
            oldest.map(|oldest| end_reasons.remove(&oldest));
        }
    }

    /// Removes the reason, because the broker renews the lease again.
    pub(super) fn clear_end_reason(&self, lease_id: LeaseId) {
        let mut seen = self.seen.lock();
        if seen.end_reasons.remove(&lease_id).is_some() {
            seen.end_reasons_order.retain(|id| *id != lease_id);
        }
    }

    /// Records the end of a lease that the store reported as expired.
    pub(super) fn ended(&self, lock: LockKey, ending: LeaseEndEvent) {
        let end_reason = self.seen.lock().end_reasons.get(&ending.lease_id).copied();
        let (reason, explanation) = match (ending.kind, end_reason) {
            (LeaseEndCause::Revoked, _) => (LeaseEndReason::Revoked, ending.reason),
            (LeaseEndCause::MaxHold, _) => with_reason(LeaseEndReason::MaxHold),
            (LeaseEndCause::Expired, None) => with_reason(LeaseEndReason::Expired),
            (LeaseEndCause::Expired, Some(explanation)) => {
                (LeaseEndReason::CredentialExpired, explanation.to_owned())
            }
        };
        self.record(LeaseEnd {
            at: SystemTime::now(),
            lock,
            lease_id: ending.lease_id,
            owner: Some(ending.owner),
            fencing_token: ending.fencing_token,
            held_ms: ending.held_ms,
            reason,
            explanation,
        });
    }

    fn record(&self, end: LeaseEnd) {
        if end.reason.is_loss() && !self.is_first_report(end.lease_id, end.fencing_token) {
            return;
        }
        self.metrics.lease_ended(&end);
        log(&end);
        self.trace(&end).end();
        self.history.record_end(end);
    }

    /// Creates a span for a lost lease, linked to the call that acquired the lease. If the store
    /// has lost the lease, that call is unknown here, and the stream that detects the loss creates
    /// the span.
    fn trace(&self, end: &LeaseEnd) -> Span {
        let parent = end.owner.as_ref().and_then(|owner| owner.trace);
        let Some(parent) = parent.filter(|_| end.reason.is_loss()) else {
            return Span::default();
        };
        let span = self.tracing.event("lease.lost", parent);
        if span.is_recording() {
            spans::record_locks(&span, [&end.lock]);
            spans::lease_id(&span, end.lease_id);
            spans::record_loss(&span, end.reason, end.explanation.clone());
        }
        span
    }

    /// Returns true if this loss was not reported before. An expiry that was reported is followed
    /// by a loss if the store no longer has the record of the expired lease when the stream renews
    /// the lease.
    fn is_first_report(&self, lease_id: LeaseId, fencing_token: u64) -> bool {
        let end = (lease_id, fencing_token);
        let mut seen = self.seen.lock();
        let SeenEnds {
            reported,
            reported_order: order,
            ..
        } = &mut *seen;
        let is_new = reported.insert(end);
        if is_new {
            let oldest = push_bounded(order, end);
            oldest.map(|oldest| reported.remove(&oldest));
        }
        is_new
    }
}

/// Appends `newest`, and returns the oldest entry if it was removed to keep the bound.
fn push_bounded<T: Eq + Hash>(order: &mut VecDeque<T>, newest: T) -> Option<T> {
    order.push_back(newest);
    (order.len() > SEEN_MAX).then(|| order.pop_front())?
}

/// Builds the end of a lease of which only the reference is known. The hold time is derived from
/// the fencing token, which is at least the time of the grant in microseconds and rarely higher.
fn end_of(held: &LeaseRef, reason: LeaseEndReason) -> LeaseEnd {
    let at = SystemTime::now();
    let granted_at = Duration::from_micros(held.fencing_token.get());
    LeaseEnd {
        at,
        lock: held.lock.clone(),
        lease_id: held.lease_id,
        owner: None,
        fencing_token: held.fencing_token.get(),
        held_ms: millis(unix_time(at).saturating_sub(granted_at)),
        reason,
        explanation: reason.explanation().to_owned(),
    }
}

fn with_reason(reason: LeaseEndReason) -> (LeaseEndReason, String) {
    (reason, reason.explanation().to_owned())
}

fn log(end: &LeaseEnd) {
    let LeaseEnd {
        lock,
        lease_id,
        fencing_token,
        held_ms,
        explanation,
        ..
    } = end;
    let owner = end.owner.as_ref().map_or("", |owner| owner.id.as_str());
    let (namespace, lock, reason) = (lock.namespace(), lock.name(), end.reason.name());
    let parent = end.owner.as_ref().and_then(|owner| owner.trace);
    let _guard = crate::trace::enter_parent(parent);
    if end.reason.is_loss() {
        warn!(
            %lease_id, namespace, lock, owner, fencing_token, held_ms, reason, why = explanation,
            "a lease has lost its lock"
        );
    } else {
        debug!(%lease_id, namespace, lock, fencing_token, held_ms, reason, "a lock was released");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::stub::lease_id;

    #[test]
    fn remembered_losses_and_reasons_are_bounded() {
        let ends = LeaseEndRecorder::new(Arc::default(), Metrics::off(), Tracing::default());
        for number in 0..=SEEN_MAX {
            assert!(ends.is_first_report(lease_id(number), 1), "{number}");
            ends.set_end_reason(lease_id(number), "a reason");
        }
        let counts = |seen: &SeenEnds| (seen.reported.len(), seen.end_reasons.len());
        assert_eq!(counts(&ends.seen.lock()), (SEEN_MAX, SEEN_MAX));
        assert!(!ends.is_first_report(lease_id(1), 1), "already reported");
        assert!(
            ends.is_first_report(lease_id(0), 1),
            "the oldest is forgotten"
        );
    }
}
