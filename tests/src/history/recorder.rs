//! Recording of what unary clients send to real brokers, and of what they receive.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold_proto::v1::{ErrorReason, Lease, LockMode, LockTarget};
use leasehold_server::lock::EXCLUSIVE_WEIGHT;
use tonic::Status;

use super::{
    CallRequest, Event, EventKind, GrantedLock, LockRequest, LossReason, ReleaseScope, Validity,
};
use crate::{
    client::unary::{AcquireCall, HeldLease},
    clock::boottime,
    status::{error_reason, has_unknown_outcome},
};

/// Records the events of all clients of a run, with times of `CLOCK_BOOTTIME`.
#[derive(Debug, Default)]
pub struct HistoryRecorder(Mutex<RecorderState>);

#[derive(Debug, Default)]
struct RecorderState {
    events: Vec<Event>,
    last_number: u64,
    /// Number of each call, by its request id.
    calls: HashMap<String, u64>,
    /// Leases on which clients rely, by lease id.
    leases: HashMap<String, ReliedLease>,
}

#[derive(Debug, Default)]
struct ReliedLease {
    locks: BTreeSet<String>,
    until_us: u64,
}

/// An attempt that was sent. Dropped without an answer, it is recorded as cancelled.
#[derive(Debug)]
pub struct RecordedAttempt {
    recorder: Arc<HistoryRecorder>,
    client: String,
    attempt: u64,
    under: Option<String>,
    is_answered: bool,
}

/// An acquire, as a client sends it to one broker.
#[derive(Debug, Clone, Copy)]
pub struct SentAcquire<'a> {
    pub client: &'a str,
    /// Index of the broker.
    pub broker: usize,
    pub targets: &'a [LockTarget],
    pub call: &'a AcquireCall,
    /// Lease to which the call adds a lock.
    pub under: Option<&'a Lease>,
}

impl HistoryRecorder {
    /// Takes the recorded events, in the order of time.
    #[must_use]
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.state().events)
    }

    /// Records that an acquire is sent.
    #[must_use]
    pub fn invoke(self: &Arc<Self>, sent: SentAcquire<'_>) -> RecordedAttempt {
        let mut state = self.state();
        let attempt = state.next_number();
        let call = match state.calls.get(&sent.call.request_id) {
            Some(call) => *call,
            None => {
                let call = state.next_number();
                state.calls.insert(sent.call.request_id.clone(), call);
                call
            }
        };
        let under = sent.under.map(|lease| lease.lease_id.clone());
        let request = CallRequest {
            call,
            attempt,
            broker: broker_name(sent.broker),
            stream: None,
            locks: sent.targets.iter().map(requested_lock).collect(),
            under: under.clone(),
            wait_ms: millis(sent.call.wait),
            ttl_ms: millis(sent.call.ttl),
            max_hold_ms: (!sent.call.max_hold.is_zero()).then(|| millis(sent.call.max_hold)),
            lock_delay_ms: 0,
            at_least_ms: 0,
            disconnect_grace_ms: sent.call.disconnect_grace.map(millis),
        };
        state.record(sent.client, EventKind::Invoked(request));
        drop(state);
        RecordedAttempt {
            recorder: Arc::clone(self),
            client: sent.client.to_owned(),
            attempt,
            under,
            is_answered: false,
        }
    }

    /// Records the reply to a renewal. A reply that lacks a lock of the lease extends nothing.
    pub fn answer_renewal(&self, client: &str, lease_id: &str, result: &Result<HeldLease, Status>) {
        let mut state = self.state();
        let held = match result {
            Ok(held) => held,
            Err(status) => return state.lose(client, lease_id, status),
        };
        let Some(relied) = state.leases.get_mut(lease_id) else {
            return;
        };
        if !relied.locks.is_subset(&lock_names(&held.lease)) {
            return;
        }
        relied.until_us = relied.until_us.max(micros(held.valid_until()));
        let validity = validity(held, relied.until_us);
        let lease = lease_id.to_owned();
        state.record(client, EventKind::Renewed { lease, validity });
    }

    /// Records that a release is sent, of one lock or of the whole lease. Returns its number.
    pub fn invoke_release(&self, client: &str, lease_id: &str, lock: Option<&str>) -> u64 {
        let mut state = self.state();
        let release = state.next_number();
        let scope = match lock {
            None => {
                state.leases.remove(lease_id);
                ReleaseScope::Lease
            }
            Some(lock) => {
                if let Some(relied) = state.leases.get_mut(lease_id) {
                    relied.locks.remove(lock);
                }
                let lock = lock.to_owned();
                ReleaseScope::Lock { lock }
            }
        };
        let lease = lease_id.to_owned();
        let invoked = EventKind::ReleaseInvoked {
            release,
            lease,
            scope,
        };
        state.record(client, invoked);
        release
    }

    /// Records the reply to a release.
    pub fn answer_release<T>(
        &self,
        client: &str,
        lease_id: &str,
        release: u64,
        result: &Result<T, Status>,
    ) {
        let mut state = self.state();
        let answered = EventKind::ReleaseAnswered {
            release,
            lease: lease_id.to_owned(),
            is_ok: result.is_ok(),
        };
        state.record(client, answered);
        if let Err(status) = result {
            state.lose(client, lease_id, status);
        }
    }

    fn state(&self) -> MutexGuard<'_, RecorderState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecordedAttempt {
    /// Records the reply. An attempt without a reply counts as cancelled, because it may have been
    /// granted.
    pub fn answer(mut self, result: &Result<HeldLease, Status>) {
        let mut state = self.recorder.state();
        let status = match result {
            Ok(held) => {
                state.grant(&self.client, self.attempt, held);
                self.is_answered = true;
                return;
            }
            Err(status) if has_unknown_outcome(status) => return,
            Err(status) => status,
        };
        let rejected = EventKind::Rejected {
            attempt: self.attempt,
            error: status.message().to_owned(),
            lease_expired: error_reason(status) == Some(ErrorReason::LeaseExpired),
        };
        state.record(&self.client, rejected);
        if let Some(lease_id) = &self.under {
            state.lose(&self.client, lease_id, status);
        }
        self.is_answered = true;
    }
}

impl Drop for RecordedAttempt {
    fn drop(&mut self) {
        if !self.is_answered {
            let attempt = self.attempt;
            let mut state = self.recorder.state();
            state.record(&self.client, EventKind::Cancelled { attempt });
        }
    }
}

impl RecorderState {
    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Records an event. The time is read while no other client can record one.
    fn record(&mut self, client: &str, kind: EventKind) {
        self.events.push(Event {
            at_us: micros(boottime()),
            client: client.to_owned(),
            kind,
        });
    }

    /// Records a lease. Its validity is that of the reply only if the reply lists all locks on which
    /// the client relies.
    fn grant(&mut self, client: &str, attempt: u64, held: &HeldLease) {
        let lease = held.lease.lease_id.clone();
        let (listed, granted_until_us) = (lock_names(&held.lease), micros(held.valid_until()));
        let relied = self.leases.entry(lease.clone()).or_insert(ReliedLease {
            locks: BTreeSet::new(),
            until_us: granted_until_us,
        });
        relied.until_us = match relied.locks.is_subset(&listed) {
            true => relied.until_us.max(granted_until_us),
            false => relied.until_us.min(granted_until_us),
        };
        relied.locks.extend(listed);
        let validity = validity(held, relied.until_us);
        let locks = held.lease.grants.iter().map(|grant| {
            let target = grant.target.clone().unwrap_or_default();
            let LockRequest {
                lock,
                weight,
                limit,
            } = requested_lock(&target);
            GrantedLock {
                lock,
                token: grant.fencing_token.unsigned_abs(),
                weight,
                limit,
            }
        });
        let granted = EventKind::Granted {
            attempt,
            lease,
            locks: locks.collect(),
            validity,
        };
        self.record(client, granted);
    }

    /// Records the loss of a lease, if the error reports one.
    fn lose(&mut self, client: &str, lease_id: &str, status: &Status) {
        let reason = match error_reason(status) {
            Some(ErrorReason::LeaseExpired) => LossReason::Expired,
            Some(ErrorReason::LeaseRevoked) => LossReason::Revoked,
            Some(ErrorReason::LeaseNotFound | ErrorReason::StaleToken | ErrorReason::NotHolder) => {
                LossReason::NotFound
            }
            Some(_) | None => return,
        };
        self.leases.remove(lease_id);
        let lease = lease_id.to_owned();
        self.record(client, EventKind::Lost { lease, reason });
    }
}

/// Returns the name of the broker with this index.
#[must_use]
pub fn broker_name(index: usize) -> String {
    format!("broker-{index}")
}

/// Returns a time of `CLOCK_BOOTTIME` in microseconds, as events have it.
#[must_use]
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).expect("a time since the start of the host")
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).expect("a short time")
}

fn validity(held: &HeldLease, until_us: u64) -> Validity {
    Validity {
        sent_at_us: micros(held.sent_at),
        ttl_ms: millis(held.ttl()),
        until_us,
    }
}

fn lock_names(lease: &Lease) -> BTreeSet<String> {
    let targets = lease
        .grants
        .iter()
        .filter_map(|grant| grant.target.as_ref());
    targets.map(|target| target.name.clone()).collect()
}

fn requested_lock(target: &LockTarget) -> LockRequest {
    let (weight, limit) = match target.mode() {
        LockMode::Unspecified | LockMode::Exclusive => (EXCLUSIVE_WEIGHT, EXCLUSIVE_WEIGHT),
        LockMode::Shared => (1, EXCLUSIVE_WEIGHT),
        LockMode::Semaphore => (
            target.permits.max(1).unsigned_abs(),
            target.limit.unsigned_abs(),
        ),
    };
    LockRequest {
        lock: target.name.clone(),
        weight,
        limit,
    }
}

#[cfg(test)]
mod tests {
    use leasehold_proto::v1::Grant;
    use tonic::Code;
    use tonic_types::{ErrorDetails, StatusExt as _};

    use super::*;
    use crate::history::{Rule, judge};

    const TTL: Duration = Duration::from_secs(60);

    /// A lease on locks with these names, each with the token.
    fn held(lease_id: &str, locks: &[&str], token: i64) -> HeldLease {
        let grants = locks.iter().map(|name| Grant {
            target: Some(target(name)),
            fencing_token: token,
            ..Grant::default()
        });
        HeldLease {
            lease: Lease {
                lease_id: lease_id.to_owned(),
                grants: grants.collect(),
                ttl: Some(TTL.try_into().expect("a minute")),
                ..Lease::default()
            },
            sent_at: boottime(),
        }
    }

    fn target(name: &str) -> LockTarget {
        LockTarget {
            name: name.to_owned(),
            ..LockTarget::default()
        }
    }

    fn invoke(
        recorder: &Arc<HistoryRecorder>,
        client: &str,
        call: &AcquireCall,
    ) -> RecordedAttempt {
        recorder.invoke(SentAcquire {
            client,
            broker: 0,
            targets: &[call.target()],
            call,
            under: None,
        })
    }

    fn acquire(recorder: &Arc<HistoryRecorder>, client: &str, token: i64) -> HeldLease {
        let call = AcquireCall::new("a", TTL, Duration::ZERO);
        let held = held(client, &["a"], token);
        invoke(recorder, client, &call).answer(&Ok(held.clone()));
        held
    }

    fn violated(recorder: &HistoryRecorder) -> Vec<Rule> {
        let verdict = judge(&recorder.take());
        verdict.counts().into_keys().collect()
    }

    #[test]
    fn two_holders_of_an_exclusive_lock_violate_the_exclusion() {
        let recorder = Arc::default();
        acquire(&recorder, "one", 1);
        acquire(&recorder, "two", 2);
        assert_eq!(violated(&recorder), [Rule::Exclusion]);
    }

    #[test]
    fn a_holder_after_a_release_violates_nothing() {
        let recorder = Arc::default();
        acquire(&recorder, "one", 1);
        let release = recorder.invoke_release("one", "one", None);
        recorder.answer_release("one", "one", release, &Ok(()));
        acquire(&recorder, "two", 2);
        assert_eq!(violated(&recorder), []);
    }

    #[test]
    fn a_lost_lease_needs_a_cause() {
        let recorder = Arc::default();
        acquire(&recorder, "one", 1);
        let reason = ErrorDetails::with_error_info("LEASE_EXPIRED", "leasehold", HashMap::new());
        let expired = Status::with_error_details(Code::FailedPrecondition, "expired", reason);
        recorder.answer_renewal("one", "one", &Err(expired));
        assert_eq!(violated(&recorder), [Rule::LossCause]);
    }

    #[test]
    fn a_reply_that_lacks_a_lock_extends_nothing() {
        let recorder = Arc::default();
        acquire(&recorder, "one", 1);
        recorder.answer_renewal("one", "one", &Ok(held("one", &[], 1)));
        let renewals = judge(&recorder.take()).renewals;
        assert_eq!(renewals, 0);
    }

    #[test]
    fn an_attempt_without_a_reply_is_cancelled_and_a_repeat_has_its_call() {
        let recorder = Arc::default();
        let call = AcquireCall::new("a", TTL, Duration::ZERO);
        invoke(&recorder, "one", &call).answer(&Err(Status::unavailable("gone")));
        drop(invoke(&recorder, "one", &call));
        let events = recorder.take();
        let calls = events.iter().filter_map(|event| {
            let EventKind::Invoked(request) = &event.kind else {
                return None;
            };
            Some((request.call, request.attempt))
        });
        let [first, second] = calls.collect::<Vec<_>>()[..] else {
            panic!("{events:?}");
        };
        assert_eq!(first.0, second.0);
        let is_cancelled = |attempt: u64| {
            let cancelled = EventKind::Cancelled { attempt };
            events.iter().any(|event| event.kind == cancelled)
        };
        assert!(
            is_cancelled(first.1) && is_cancelled(second.1),
            "{events:?}"
        );
    }
}
