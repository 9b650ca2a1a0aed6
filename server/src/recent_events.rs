//! Recent lease ends, operator actions and denied requests of this broker, for display only.

use std::{collections::VecDeque, time::SystemTime};

use parking_lot::Mutex;

use crate::lock::{LeaseId, LockKey, Owner};

/// Number of lost leases that are kept. Releases are kept separately, because thousands of releases
/// per second must not displace the losses.
const LOSSES_MAX: usize = 1_000;
const RELEASES_MAX: usize = 4_096;
const AUDIT_EVENTS_MAX: usize = 1_000;
/// Number of denials that are kept. Denials are kept separately, because callers determine how many
/// there are, and must not displace operator actions.
const DENIALS_MAX: usize = 1_000;
/// Number of requests without a valid credential that are kept. They are kept separately, because
/// every client determines how many there are. Half of the rows that the operator console shows.
const UNAUTHENTICATED_MAX: usize = 100;

/// End of a lease's hold on a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseEnd {
    /// Time at which this broker detected the end.
    pub at: SystemTime,
    /// Lock that was held.
    pub lock: LockKey,
    /// Lease that held the lock.
    pub lease_id: LeaseId,
    /// Owner of the lease, if it is known.
    pub owner: Option<Owner>,
    /// Fencing token of the grant.
    pub fencing_token: u64,
    /// Duration of the hold.
    pub held_ms: u64,
    pub reason: LeaseEndReason,
    /// Explanation as a sentence: the operator's reason for a revocation, empty for a release.
    pub explanation: String,
}

/// Reason for the end of a lease, as in `LeaseEndReason` of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaseEndReason {
    /// The holder released the lease.
    Released,
    /// The lease was not renewed in time.
    Expired,
    /// An operator revoked the lease.
    Revoked,
    /// The store no longer has the lease.
    StoreLost,
    /// The lease was held for its `max_hold`.
    MaxHold,
    /// The credential of the stream expired, or the access rules forbid the lease.
    CredentialExpired,
}

/// Audit event: an operator action or a denied request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEvent {
    pub at: SystemTime,
    pub kind: AuditEventKind,
    /// Name of the caller.
    pub caller: String,
    /// Network address of the caller.
    pub peer: String,
    /// Lock of the request; `None` if the request named no lock.
    pub lock: Option<LockKey>,
    /// Lease of the request, if any.
    pub lease_id: Option<LeaseId>,
    /// Reason that the operator gave, or what was denied.
    pub detail: String,
}

/// Kind of an audit event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AuditEventKind {
    /// A lease was revoked.
    ForceRelease,
    /// The limit of a semaphore was set.
    SetLimit,
    /// The limit of a semaphore was removed.
    RemoveLimit,
    /// A lock was closed.
    Close,
    /// A lock was opened.
    Open,
    /// The access rules do not allow the request of an authenticated caller.
    Denied,
    /// A request had no valid credential.
    Unauthenticated,
}

/// Ring buffers of recent lease ends and audit events, newest first.
#[derive(Debug, Default)]
pub struct RecentEvents {
    losses: Mutex<VecDeque<LeaseEnd>>,
    releases: Mutex<VecDeque<LeaseEnd>>,
    audit_events: Mutex<VecDeque<AuditEvent>>,
    denials: Mutex<VecDeque<AuditEvent>>,
    unauthenticated: Mutex<VecDeque<AuditEvent>>,
}

impl LeaseEndReason {
    /// All reasons, in the order of their declaration.
    pub const ALL: [Self; 6] = [
        Self::Released,
        Self::Expired,
        Self::Revoked,
        Self::StoreLost,
        Self::MaxHold,
        Self::CredentialExpired,
    ];

    /// Returns the name of the reason in logs and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::StoreLost => "store_lost",
            Self::MaxHold => "max_hold",
            Self::CredentialExpired => "credential_expired",
        }
    }

    /// Returns an explanation as a sentence; empty for a release.
    #[must_use]
    pub fn explanation(self) -> &'static str {
        match self {
            Self::Released => "",
            Self::Expired => "no renewal reached the store in time",
            Self::Revoked => "an operator has revoked the lease",
            Self::StoreLost => "the store no longer has the lease",
            Self::MaxHold => "the lease has reached its max_hold",
            Self::CredentialExpired => "the credential of its stream has expired",
        }
    }

    /// Returns true if the holder lost the lock, rather than released it.
    #[must_use]
    pub fn is_loss(self) -> bool {
        self != Self::Released
    }
}

impl RecentEvents {
    /// Records the end of a lease.
    pub fn record_end(&self, end: LeaseEnd) {
        if end.reason.is_loss() {
            push(&self.losses, end, LOSSES_MAX);
        } else {
            push(&self.releases, end, RELEASES_MAX);
        }
    }

    /// Records an audit event.
    pub fn record_audit(&self, event: AuditEvent) {
        match event.kind {
            AuditEventKind::Denied => push(&self.denials, event, DENIALS_MAX),
            AuditEventKind::Unauthenticated => {
                push(&self.unauthenticated, event, UNAUTHENTICATED_MAX)
            }
            AuditEventKind::ForceRelease
            | AuditEventKind::SetLimit
            | AuditEventKind::RemoveLimit
            | AuditEventKind::Close
            | AuditEventKind::Open => {
                push(&self.audit_events, event, AUDIT_EVENTS_MAX);
            }
        }
    }

    /// Returns the recent lost leases.
    #[must_use]
    pub fn losses(&self) -> Vec<LeaseEnd> {
        snapshot(&self.losses)
    }

    /// Returns the recent lease ends of one lock, at most `max_count`.
    #[must_use]
    pub fn ends_of(&self, lock: &LockKey, max_count: usize) -> Vec<LeaseEnd> {
        let recent_ends = |ends: &Mutex<VecDeque<LeaseEnd>>| {
            let ends = ends.lock();
            let ends_of_lock = ends.iter().filter(|end| end.lock == *lock);
            ends_of_lock.take(max_count).cloned().collect::<Vec<_>>()
        };
        let mut ends = recent_ends(&self.losses);
        ends.extend(recent_ends(&self.releases));
        ends.sort_by_key(|end| std::cmp::Reverse(end.at));
        ends.truncate(max_count);
        ends
    }

    /// Returns the recent audit events of all kinds.
    #[must_use]
    pub fn audit_events(&self) -> Vec<AuditEvent> {
        let mut events = snapshot(&self.audit_events);
        events.extend(snapshot(&self.denials));
        events.extend(snapshot(&self.unauthenticated));
        events.sort_by_key(|event| std::cmp::Reverse(event.at));
        events
    }
}

fn push<T>(buffer: &Mutex<VecDeque<T>>, newest: T, max_len: usize) {
    let mut buffer = buffer.lock();
    buffer.truncate(max_len - 1);
    buffer.push_front(newest);
}

fn snapshot<T: Clone>(buffer: &Mutex<VecDeque<T>>) -> Vec<T> {
    buffer.lock().iter().cloned().collect()
}

#[cfg(test)]
mod tests {
    use crate::lock::{LockName, Namespace};

    use super::*;

    #[test]
    fn each_kind_keeps_its_newest_events() {
        let history = RecentEvents::default();
        for token in 0..2 * RELEASES_MAX as u64 {
            history.record_end(end(LeaseEndReason::Expired, token));
            history.record_end(end(LeaseEndReason::Released, token));
            history.record_audit(event(AuditEventKind::SetLimit));
            history.record_audit(event(AuditEventKind::Denied));
        }
        let newest = 2 * RELEASES_MAX as u64 - 1;
        let losses = history.losses();
        assert_eq!(losses.len(), LOSSES_MAX);
        assert_eq!(losses[0].fencing_token, newest);
        let ends = history.ends_of(&lock(), usize::MAX);
        assert_eq!(ends.len(), LOSSES_MAX + RELEASES_MAX);
        let count_kind = |kind| {
            let events = history.audit_events();
            events.iter().filter(|event| event.kind == kind).count()
        };
        assert_eq!(count_kind(AuditEventKind::SetLimit), AUDIT_EVENTS_MAX);
        assert_eq!(count_kind(AuditEventKind::Denied), DENIALS_MAX);
    }

    fn lock() -> LockKey {
        let namespace = Namespace::parse("").expect("the default");
        LockKey::new(namespace, LockName::parse("a").expect("a name"))
    }

    fn end(reason: LeaseEndReason, fencing_token: u64) -> LeaseEnd {
        LeaseEnd {
            at: SystemTime::now(),
            lock: lock(),
            lease_id: LeaseId::parse(&"a".repeat(LeaseId::LEN)).expect("an id"),
            owner: None,
            fencing_token,
            held_ms: 0,
            reason,
            explanation: String::new(),
        }
    }

    fn event(kind: AuditEventKind) -> AuditEvent {
        AuditEvent {
            at: SystemTime::now(),
            kind,
            caller: String::new(),
            peer: String::new(),
            lock: None,
            lease_id: None,
            detail: String::new(),
        }
    }
}
