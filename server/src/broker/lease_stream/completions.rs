//! Completion of a stream's jobs: updates the leases and notifies the client.

use super::{
    CallError, LeaseEndedReason, LeaseStream, Liveness, Phase, RETRY_DELAY, RenewedLease,
    StreamEvent, leases::LeasePhase,
};
use crate::{
    broker::{ReleaseResult, acquire::AcquireResult},
    lock::{
        HeldLock, LeaseId, LeaseRef, LockError, LockFailure, LockKey, PresentedLease, ReleaseScope,
    },
    quotas::QuotaPermit,
    trace::LinkedSpan,
};

/// Handler of the result of a job. Called by the task of the stream once the job is completed.
pub(super) type Completion = Box<dyn FnOnce(&mut LeaseStream) + Send>;

/// Creates the completion of a job.
pub(super) fn completion(on_result: impl FnOnce(&mut LeaseStream) + Send + 'static) -> Completion {
    Box::new(on_result)
}

impl LeaseStream {
    pub(super) fn on_acquired(&mut self, call_id: i64, number: u32, result: AcquireResult) {
        let call = self.pending_calls.remove(&call_id);
        let is_denied = call.is_some_and(|call| call.is_denied);
        match result {
            Ok(undelivered) if self.liveness == Liveness::Silent => {
                undelivered.roll_back();
                let error = CallError::Cancelled;
                self.send(StreamEvent::Refused { call_id, error });
            }
            Ok(undelivered) if is_denied || self.is_forbidden(undelivered.locks()) => {
                undelivered.roll_back();
                let error = CallError::Denied;
                self.send(StreamEvent::Refused { call_id, error });
            }
            Ok(mut undelivered) => {
                let (as_of, origin) = (undelivered.as_of(), undelivered.origin());
                let (lease, mut permits) = undelivered.accept();
                self.broker.count_held(&mut permits, &lease.locks);
                let lease_refs = lease.locks.iter().map(|held| LeaseRef {
                    lock: held.lock.clone(),
                    lease_id: lease.lease_id,
                    fencing_token: held.grant.fencing_token,
                });
                let grants: Vec<_> = lease.locks.iter().map(|held| held.grant).collect();
                self.insert_lease(lease.lease_id, number, lease_refs.collect(), &grants);
                self.set_permits(lease.lease_id, permits);
                self.set_origin(lease.lease_id, origin);
                if self.phase == Phase::Closing {
                    return self.release_lease(lease.lease_id, ReleaseScope::All);
                }
                self.send(StreamEvent::Granted {
                    call_id,
                    lease,
                    as_of,
                });
            }
            Err(failure) if is_denied && failure.error == LockError::Cancelled => {
                let error = CallError::Denied;
                self.send(StreamEvent::Refused { call_id, error });
            }
            Err(failure) => self.refuse(call_id, failure),
        }
    }

    /// Returns true if the access rules have changed since the call was admitted, and now forbid
    /// one of its locks.
    fn is_forbidden<'a>(&self, mut locks: impl Iterator<Item = &'a LockKey>) -> bool {
        let access_filter = self.access.as_ref();
        access_filter.is_some_and(|access_filter| !locks.all(|lock| access_filter(lock)))
    }

    fn set_permits(&mut self, lease_id: LeaseId, permits: Vec<QuotaPermit>) {
        if let Some(lease) = self.leases.get_mut(&lease_id) {
            lease.set_permits(permits);
        }
    }

    pub(super) fn on_attached(
        &mut self,
        call_id: i64,
        number: u32,
        lease: PresentedLease,
        result: Result<Vec<HeldLock>, LockFailure>,
        origin: Option<Box<LinkedSpan>>,
    ) {
        self.pending_calls.remove(&call_id);
        let held_locks = match result {
            Ok(held_locks) => held_locks,
            Err(failure) => return self.refuse(call_id, failure),
        };
        let lease_id = lease.lease_id;
        let is_attached =
            |held: &LeaseRef| held_locks.iter().any(|attached| attached.lock == held.lock);
        let locks = lease.locks.into_iter().filter(is_attached).collect();
        let grants: Vec<_> = held_locks.iter().map(|held| held.grant).collect();
        self.insert_lease(lease_id, number, locks, &grants);
        if let Some(attached) = self.leases.get_mut(&lease_id) {
            attached.note_ttl(lease.ttl);
        }
        self.recompute_silence_limit();
        self.set_origin(lease_id, origin);
        let quotas = &self.broker.quotas;
        quotas.untrack(lease_id);
        let permits = held_locks
            .iter()
            .map(|held| quotas.permit(&self.caller, &held.lock));
        let mut permits: Vec<_> = permits.collect();
        self.broker.count_held(&mut permits, &held_locks);
        self.broker.lease_ends.clear_end_reason(lease_id);
        self.set_permits(lease_id, permits);
        if self.phase == Phase::Closing {
            return self.release_lease(lease_id, ReleaseScope::All);
        }
        let interval_ms = self.interval_ms();
        self.send(StreamEvent::Attached {
            call_id,
            lease_id,
            interval_ms,
        });
        if self.is_forbidden(held_locks.iter().map(|held| &held.lock)) {
            self.end_lease(lease_id, LeaseEndedReason::Denied);
        }
    }

    pub(super) fn on_renewed(
        &mut self,
        lease_id: LeaseId,
        sequence: i64,
        requested: &[LeaseRef],
        result: Result<Vec<HeldLock>, LockFailure>,
    ) {
        let inactive_duration = self.last_activity_at.elapsed();
        let Some(lease) = self.leases.get_mut(&lease_id) else {
            return;
        };
        lease.phase = LeasePhase::Idle;
        match result {
            Ok(renewed) => {
                lease.slack.renewal_confirmed();
                lease.trace_renewal(lease_id, true);
                let is_renewed =
                    |held: &LeaseRef| renewed.iter().any(|lock| lock.lock == held.lock);
                lease
                    .locks
                    .retain(|held| is_renewed(held) || !requested.contains(held));
                if lease.permits.len() > lease.locks.len() {
                    lease.set_permits(Vec::new());
                }
                let grants = || renewed.iter().map(|held| held.grant);
                let ttl = grants().map(|grant| grant.ttl).min().unwrap_or(lease.ttl);
                let is_shortened = ttl < lease.ttl && lease.should_announce_end(ttl.as_millis());
                lease.ttl = ttl;
                let extended = RenewedLease {
                    lease_id,
                    ttl,
                    queue_length: grants().map(|grant| grant.queue_length).sum(),
                    locks: renewed.len(),
                };
                self.pending_acks.push((sequence, extended));
                if is_shortened {
                    self.send(StreamEvent::ReleaseRequested {
                        lease_id,
                        grace_ms: ttl.as_millis(),
                        reason: None,
                    });
                }
            }
            Err(failure) if failure.error.is_indeterminate() => {
                lease.trace_renewal(lease_id, false);
                // After that a newer heartbeat is needed.
                if inactive_duration < lease.validity() {
                    self.schedule_renewal(lease_id, sequence, RETRY_DELAY);
                }
            }
            Err(failure) => return self.end_lease(lease_id, ended_reason(failure.error)),
        }
        self.run_next(lease_id);
    }

    pub(super) fn on_released(
        &mut self,
        call_id: i64,
        lease_id: LeaseId,
        scope: ReleaseScope,
        requested: &[LeaseRef],
        result: Result<ReleaseResult, LockFailure>,
    ) {
        let has_ended = match (&result, scope, self.leases.get_mut(&lease_id)) {
            (_, _, None) => false,
            (Ok(_), ReleaseScope::All | ReleaseScope::ExpireNow, Some(_)) => true,
            (Ok(released), ReleaseScope::Lock | ReleaseScope::Entry(_), Some(lease)) => {
                // The lease may have been granted the lock again since the command was sent.
                lease
                    .locks
                    .retain(|held| released.hold_count > 0 || !requested.contains(held));
                lease.set_permits(Vec::new());
                lease.locks.is_empty()
            }
            (Err(failure), _, Some(_)) => !failure.error.is_indeterminate(),
        };
        match result {
            Ok(released) => self.send(StreamEvent::Released {
                call_id,
                result: released,
            }),
            Err(failure) => self.refuse(call_id, failure),
        }
        if has_ended {
            self.remove_lease(lease_id);
        } else if let Some(lease) = self.leases.get_mut(&lease_id) {
            lease.phase = LeasePhase::Idle;
            self.run_next(lease_id);
        }
    }

    /// Handles the result of a release that the stream started itself. While the store is
    /// unreachable, the release is retried until the lease has expired in the store.
    pub(super) fn released_by_stream(
        &mut self,
        lease_id: LeaseId,
        scope: ReleaseScope,
        result: Result<ReleaseResult, LockFailure>,
    ) {
        let inactive_duration = self.last_activity_at.elapsed();
        let Some(lease) = self.leases.get_mut(&lease_id) else {
            return;
        };
        lease.phase = LeasePhase::Idle;
        let is_retryable = result.is_err_and(|failure| failure.error.is_indeterminate());
        if is_retryable && inactive_duration < lease.expiry() {
            self.schedule_release_retry(lease_id, scope);
        } else if scope == ReleaseScope::ExpireNow {
            self.end_lease(lease_id, LeaseEndedReason::Expired);
        } else {
            self.remove_lease(lease_id);
        }
    }

    /// Acknowledges all completed renewals, with one message for each heartbeat.
    pub(super) fn acknowledge(&mut self) {
        if self.pending_acks.is_empty() {
            return;
        }
        let interval_ms = self.interval_ms();
        let mut interval_ms = (interval_ms != self.interval_ms).then_some(interval_ms);
        self.interval_ms = interval_ms.unwrap_or(self.interval_ms);
        self.pending_acks.sort_by_key(|ack| ack.0);
        let mut acks = std::mem::take(&mut self.pending_acks)
            .into_iter()
            .peekable();
        while let Some((sequence, first)) = acks.next() {
            let mut leases = vec![first];
            while let Some((_, next)) = acks.next_if(|next| next.0 == sequence) {
                leases.push(next);
            }
            self.send(StreamEvent::Acknowledged {
                sequence,
                leases,
                interval_ms: interval_ms.take(),
            });
        }
    }

    fn refuse(&mut self, call_id: i64, failure: LockFailure) {
        let error = if failure.error == LockError::Cancelled {
            CallError::Cancelled
        } else {
            CallError::Failed(failure)
        };
        self.send(StreamEvent::Refused { call_id, error });
    }
}

fn ended_reason(error: LockError) -> LeaseEndedReason {
    if let LockError::LeaseRevoked { reason } = error {
        return LeaseEndedReason::Revoked { reason };
    }
    let ended_reasons = [
        (LockError::MaxHold, LeaseEndedReason::MaxHold),
        (LockError::StaleAttach, LeaseEndedReason::Moved),
        (LockError::LeaseReleased, LeaseEndedReason::Released),
        (LockError::LeaseNotFound, LeaseEndedReason::Lost),
    ];
    let reason = ended_reasons
        .into_iter()
        .find(|(ended_by, _)| *ended_by == error);
    reason.map_or(LeaseEndedReason::Expired, |(_, reason)| reason)
}
