//! How leases' holds on locks end: each end is written down, counted and logged once, and each loss traced.
//!
//! Who tells of which is settled, so that none is told twice:
//! * a release: the broker that carried it out;
//! * a hold whose time is over, whatever ended it: the store tells the broker whose command found it
//!   ([`Event::Ended`](crate::store::Event::Ended)). That a stream said so to its client before, or will, counts for nothing;
//! * a hold that the store has lost: the stream whose renewal found that;
//! * a hold of a stream whose credential ran out, or that the rules forbid, ends in the store like any
//!   other that is renewed no more: the stream has said why beforehand, so that it is told here then.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tracing::{debug, warn};

use super::traced as spans;
use crate::{
    history::{End, EndReason, History},
    lock::{LeaseId, LeaseRef, LockKey},
    metrics::Metrics,
    store::{Ending, EndingKind},
    trace::{Traced, Tracing},
};

/// Losses that are known by their token, and reasons that are known beforehand.
const KNOWN_MAX: usize = 4_096;

/// Where ends are told.
pub(super) struct Ends {
    history: Arc<History>,
    metrics: Metrics,
    tracing: Tracing,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Losses that were told.
    lost: HashSet<(LeaseId, u64)>,
    in_order: VecDeque<(LeaseId, u64)>,
    /// Leases that are renewed no more by the broker's own will.
    forbidden: HashMap<LeaseId, &'static str>,
    forbidden_in_order: VecDeque<LeaseId>,
}

impl Ends {
    pub(super) fn new(history: Arc<History>, metrics: Metrics, tracing: Tracing) -> Self {
        Self {
            history,
            metrics,
            tracing,
            known: Mutex::default(),
        }
    }

    /// A lease gave a lock back.
    pub(super) fn released(&self, held: &LeaseRef) {
        self.tell(of(held, EndReason::Released));
    }

    /// The store does not know a lease any more that was on a stream.
    pub(super) fn lost(&self, held: &LeaseRef) {
        self.tell(of(held, EndReason::StoreLost));
    }

    /// The broker renews a lease no more, and why.
    pub(super) fn forbid(&self, lease_id: LeaseId, why: &'static str) {
        let mut known = self.known();
        let Known {
            forbidden,
            forbidden_in_order,
            ..
        } = &mut *known;
        if forbidden.insert(lease_id, why).is_none() {
            let oldest = bounded(forbidden_in_order, lease_id);
            oldest.map(|oldest| forbidden.remove(&oldest));
        }
    }

    /// The broker renews a lease again.
    pub(super) fn allow(&self, lease_id: LeaseId) {
        let mut known = self.known();
        if known.forbidden.remove(&lease_id).is_some() {
            known.forbidden_in_order.retain(|other| *other != lease_id);
        }
    }

    /// The store has found a lease's time to be over.
    pub(super) fn ended(&self, lock: LockKey, ending: Ending) {
        let forbidden = self.known().forbidden.get(&ending.lease_id).copied();
        let (reason, why) = match (ending.kind, forbidden) {
            (EndingKind::Revoked, _) => (EndReason::Revoked, ending.reason),
            (EndingKind::MaxHold, _) => with_why(EndReason::MaxHold),
            (EndingKind::Expired, None) => with_why(EndReason::Expired),
            (EndingKind::Expired, Some(why)) => (EndReason::CredentialExpired, why.to_owned()),
        };
        self.tell(End {
            at: SystemTime::now(),
            lock,
            lease_id: ending.lease_id,
            owner: Some(ending.owner),
            fencing_token: ending.fencing_token,
            held_ms: ending.held_ms,
            reason,
            why,
        });
    }

    fn tell(&self, end: End) {
        if end.reason.is_loss() && !self.is_new((end.lease_id, end.fencing_token)) {
            return;
        }
        self.metrics.ended(&end);
        log(&end);
        self.trace(&end).end();
        self.history.ended(end);
    }

    /// A loss, as a span that leads back to the call by which the lease came. The stream that finds out that
    /// the store has lost a lease has a span for that: here nobody knows of that call.
    fn trace(&self, end: &End) -> Traced {
        let of_call = end.owner.as_ref().and_then(|owner| owner.trace);
        let Some(of_call) = of_call.filter(|_| end.reason.is_loss()) else {
            return Traced::default();
        };
        let traced = self.tracing.event("lease.lost", of_call);
        if traced.is_recording() {
            spans::about(&traced, [&end.lock]);
            spans::lease_id(&traced, end.lease_id);
            spans::lost(&traced, end.reason, end.why.clone());
        }
        traced
    }

    /// Whether this loss was not told yet. A lease may have run out so long ago that the store has
    /// forgotten that, too.
    fn is_new(&self, lost: (LeaseId, u64)) -> bool {
        let mut known = self.known();
        let Known {
            lost: all,
            in_order,
            ..
        } = &mut *known;
        let is_new = all.insert(lost);
        if is_new {
            let oldest = bounded(in_order, lost);
            oldest.map(|oldest| all.remove(&oldest));
        }
        is_new
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One more; what was the oldest if that is one too many.
fn bounded<T: Eq + Hash>(in_order: &mut VecDeque<T>, newest: T) -> Option<T> {
    in_order.push_back(newest);
    (in_order.len() > KNOWN_MAX).then(|| in_order.pop_front())?
}

/// An end of which nothing is known but the lease: the token is not below the microsecond of the grant, and
/// hardly above.
fn of(held: &LeaseRef, reason: EndReason) -> End {
    let at = SystemTime::now();
    let now = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let granted = Duration::from_micros(held.fencing_token.get());
    let held_for = now.saturating_sub(granted).as_millis();
    End {
        at,
        lock: held.lock.clone(),
        lease_id: held.lease_id,
        owner: None,
        fencing_token: held.fencing_token.get(),
        held_ms: u64::try_from(held_for).unwrap_or(u64::MAX),
        reason,
        why: reason.why().to_owned(),
    }
}

fn with_why(reason: EndReason) -> (EndReason, String) {
    (reason, reason.why().to_owned())
}

/// The one line of an end.
fn log(end: &End) {
    let End {
        lock,
        lease_id,
        fencing_token,
        held_ms,
        why,
        ..
    } = end;
    let owner = end.owner.as_ref().map_or("", |owner| owner.id.as_str());
    let (namespace, lock, reason) = (lock.namespace(), lock.name(), end.reason.name());
    let of_call = end.owner.as_ref().and_then(|owner| owner.trace);
    let _ids = crate::trace::of_call(of_call);
    if end.reason.is_loss() {
        warn!(
            %lease_id, namespace, lock, owner, fencing_token, held_ms, reason, why,
            "a lease has lost its lock"
        );
    } else {
        debug!(%lease_id, namespace, lock, fencing_token, held_ms, reason, "a lock was given back");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::stub::lease_id;

    #[test]
    fn so_many_losses_and_reasons_are_known() {
        let ends = Ends::new(Arc::default(), Metrics::off(), Tracing::default());
        for number in 0..=KNOWN_MAX {
            assert!(ends.is_new((lease_id(number), 1)), "{number}");
            ends.forbid(lease_id(number), "a reason");
        }
        let counts = |known: &Known| (known.lost.len(), known.forbidden.len());
        assert_eq!(counts(&ends.known()), (KNOWN_MAX, KNOWN_MAX));
        assert!(!ends.is_new((lease_id(1), 1)), "told already");
        assert!(ends.is_new((lease_id(0), 1)), "the oldest is forgotten");
    }
}
