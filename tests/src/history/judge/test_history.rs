//! Builder of small histories for the tests of the rules.

use leasehold_server::lock::EXCLUSIVE_WEIGHT;

use super::{Rule, judge};
use crate::history::{
    CallRequest, Event, EventKind, Fault, GrantedLock, LockRequest, LossReason, ReleaseScope,
    Validity,
};

/// TTL of all leases.
pub(super) const TTL_MS: u64 = 10_000;
pub(super) const LOCK: &str = "x";

/// A history whose times are given in milliseconds. Attempt `n` is sent by client `n`, unless the
/// test names another client, and its lease has the name `n`.
#[derive(Default)]
pub(super) struct TestHistory(Vec<Event>);

impl TestHistory {
    pub(super) fn event(mut self, at_ms: u64, client: impl ToString, kind: EventKind) -> Self {
        self.0.push(Event {
            at_us: at_ms * 1_000,
            client: client.to_string(),
            kind,
        });
        self
    }

    /// Sends an exclusive call for [`LOCK`] on stream `attempt`, which waits for a second.
    pub(super) fn invoke(self, at_ms: u64, attempt: u64) -> Self {
        self.invoke_with(at_ms, attempt, |_| {})
    }

    pub(super) fn invoke_with(
        self,
        at_ms: u64,
        attempt: u64,
        change: impl FnOnce(&mut CallRequest),
    ) -> Self {
        let mut request = CallRequest {
            call: attempt,
            attempt,
            broker: "b".to_owned(),
            stream: Some(attempt),
            locks: vec![LockRequest {
                lock: LOCK.to_owned(),
                weight: EXCLUSIVE_WEIGHT,
                limit: EXCLUSIVE_WEIGHT,
            }],
            under: None,
            wait_ms: 1_000,
            ttl_ms: TTL_MS,
            max_hold_ms: None,
            lock_delay_ms: 0,
            at_least_ms: 0,
            disconnect_grace_ms: None,
        };
        change(&mut request);
        self.event(at_ms, attempt, EventKind::Invoked(request))
    }

    pub(super) fn queue(self, at_ms: u64, attempt: u64) -> Self {
        let lock = LOCK.to_owned();
        let position = 1;
        let queued = EventKind::Queued {
            attempt,
            lock,
            position,
        };
        self.event(at_ms, attempt, queued)
    }

    /// Delivers the exclusive lock, with a validity from `sent_ms`.
    pub(super) fn grant(self, at_ms: u64, attempt: u64, token: u64, sent_ms: u64) -> Self {
        self.grant_share(at_ms, (attempt, token, sent_ms), [EXCLUSIVE_WEIGHT; 2])
    }

    pub(super) fn grant_share(
        self,
        at_ms: u64,
        (attempt, token, sent_ms): (u64, u64, u64),
        [weight, limit]: [u32; 2],
    ) -> Self {
        self.grant_lease(at_ms, attempt, (attempt, token, sent_ms), [weight, limit])
    }

    /// Delivers a lease that was created by another attempt.
    pub(super) fn grant_lease(
        self,
        at_ms: u64,
        attempt: u64,
        (lease, token, sent_ms): (u64, u64, u64),
        [weight, limit]: [u32; 2],
    ) -> Self {
        let granted = EventKind::Granted {
            attempt,
            lease: lease.to_string(),
            locks: vec![GrantedLock {
                lock: LOCK.to_owned(),
                token,
                weight,
                limit,
            }],
            validity: validity(sent_ms),
        };
        self.event(at_ms, attempt, granted)
    }

    pub(super) fn renew(self, at_ms: u64, lease: u64, sent_ms: u64) -> Self {
        let (name, validity) = (lease.to_string(), validity(sent_ms));
        self.event(
            at_ms,
            lease,
            EventKind::Renewed {
                lease: name,
                validity,
            },
        )
    }

    /// Sends the release of a lease. Its number is that of the lease.
    pub(super) fn release(self, at_ms: u64, lease: u64) -> Self {
        let released = EventKind::ReleaseInvoked {
            release: lease,
            lease: lease.to_string(),
            scope: ReleaseScope::Lease,
        };
        self.event(at_ms, lease, released)
    }

    /// Receives the reply to the release of a lease.
    pub(super) fn answer_release(self, at_ms: u64, lease: u64) -> Self {
        let answered = EventKind::ReleaseAnswered {
            release: lease,
            lease: lease.to_string(),
            is_ok: true,
        };
        self.event(at_ms, lease, answered)
    }

    pub(super) fn reject(self, at_ms: u64, attempt: u64) -> Self {
        self.reject_with(at_ms, attempt, "WAIT_TIMEOUT", false)
    }

    /// Receives the reply that the lease of the attempt has expired.
    pub(super) fn reject_expired(self, at_ms: u64, attempt: u64) -> Self {
        self.reject_with(at_ms, attempt, "LEASE_EXPIRED", true)
    }

    fn reject_with(self, at_ms: u64, attempt: u64, error: &str, lease_expired: bool) -> Self {
        let rejected = EventKind::Rejected {
            attempt,
            error: error.to_owned(),
            lease_expired,
        };
        self.event(at_ms, attempt, rejected)
    }

    pub(super) fn cancel(self, at_ms: u64, attempt: u64) -> Self {
        self.event(at_ms, attempt, EventKind::Cancelled { attempt })
    }

    pub(super) fn lose(self, at_ms: u64, lease: u64, reason: LossReason) -> Self {
        let name = lease.to_string();
        self.event(
            at_ms,
            lease,
            EventKind::Lost {
                lease: name,
                reason,
            },
        )
    }

    pub(super) fn close_stream(self, at_ms: u64, stream: u64) -> Self {
        self.event(at_ms, stream, EventKind::StreamClosed { stream })
    }

    pub(super) fn fault(self, [from_ms, to_ms]: [u64; 2], fault: Fault) -> Self {
        let began = EventKind::FaultBegan {
            fault: fault.clone(),
        };
        self.event(from_ms, "faults", began)
            .event(to_ms, "faults", EventKind::FaultEnded { fault })
    }

    /// Judges the history, and returns the rules of its violations.
    pub(super) fn violated(mut self) -> Vec<Rule> {
        self.0.sort_by_key(|event| event.at_us);
        let verdict = judge(&self.0);
        verdict
            .violations
            .into_iter()
            .map(|violation| violation.rule)
            .collect()
    }
}

fn validity(sent_ms: u64) -> Validity {
    Validity {
        sent_at_us: sent_ms * 1_000,
        ttl_ms: TTL_MS,
        until_us: (sent_ms + TTL_MS) * 1_000,
    }
}
