//! Leases of a stream. One command for each lease runs at a time, and further commands are queued.

use std::{
    collections::{VecDeque, btree_map::Entry},
    time::Duration,
};

use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, sleep},
};

use super::{
    CallError, LeaseEndedReason, LeaseStream, PendingCommand, Phase, RETRY_DELAY, StreamEvent,
    completions::completion, registry::RemoteLeaseEvent,
};
use crate::{
    broker::{RENEWAL_PERMIT_HOLD_MAX, with_permit},
    lock::{
        ExpectedAttachment, Grant, HEARTBEAT_WHILE_WAITING_MS, LeaseId, LeaseRef, LockKey,
        ReleaseScope, Ttl, expiry_ms,
    },
    metrics::RenewalSlack,
    quotas::{QuotaPermit, Quotas},
    store::Revocation,
    trace::LinkedSpan,
};

/// Minimum difference between an announced end and an earlier end that is announced as well.
const ANNOUNCE_MIN_DIFFERENCE: Duration = Duration::from_millis(500);
/// Delay of the renewal that detects a revocation without grace. A lock that is revoked in the
/// millisecond of its grant may still be renewed within that millisecond.
const REVOKE_CHECK_DELAY: Duration = Duration::from_millis(2);
/// Shortest silence that counts, however short the validity of a lease is.
const SILENCE_MIN: Duration = Duration::from_secs(1);
/// Maximum number of queued commands of one lease.
const COMMANDS_MAX: usize = 1_000;

/// A lease of the stream.
pub(super) struct StreamLease {
    /// Number of the attachment by which the lease is on the stream.
    number: u32,
    pub(super) locks: Vec<LeaseRef>,
    /// Quota permits, one for each lock.
    pub(super) permits: Vec<QuotaPermit>,
    pub(super) ttl: Ttl,
    /// Longest validity by which the client may send its heartbeats. It does so until it has read of a
    /// shorter one, which the lease has near the end of its `max_hold`.
    longest_ttl: Ttl,
    /// Time after a disconnect at which the lease is released; `None` if the lease stays until its
    /// expiry.
    pub(super) grace: Option<Duration>,
    pub(super) grace_state: GraceState,
    /// End of the lease as last announced to the client.
    ends_at: Option<Instant>,
    pub(super) phase: LeasePhase,
    /// Recorder of the validity that is left when a heartbeat arrives.
    pub(super) slack: RenewalSlack,
    /// Sequence number of a heartbeat that no renewal has followed yet.
    pub(super) pending_heartbeat: Option<i64>,
    pub(super) commands: VecDeque<LeaseCommand>,
    /// Span of the call that acquired or attached the lease, if the span is recorded.
    pub(super) origin: Option<Box<LinkedSpan>>,
}

/// Phase of a lease: whether a command for it is in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeasePhase {
    Idle,
    /// The lease waits for a permit to be renewed. Other commands do not wait for this permit.
    RenewalQueued,
    /// A command for the lease is in progress.
    Busy,
}

/// State of the disconnect grace of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GraceState {
    NotRunning,
    /// The client has been disconnected or silent since this time. Anything that it sends ends the
    /// grace.
    RunningSince(Instant),
    /// The stream releases the lease. The lease is not renewed any longer, because a release that
    /// had no reply may be executed at any time.
    Passed,
}

/// A command that waits until the current command for the lease completes.
#[derive(Debug, Clone)]
pub(super) enum LeaseCommand {
    /// A release. `call_id` is `None` if the stream itself started the release.
    Release {
        call_id: Option<i64>,
        lock: Option<LockKey>,
        scope: ReleaseScope,
    },
    Detach {
        call_id: i64,
    },
}

impl StreamLease {
    /// Returns true if the client must be notified that the lease ends in `ends_in_ms`, and records
    /// the notification.
    pub(super) fn should_announce_end(&mut self, ends_in_ms: u64) -> bool {
        let ends_at = Instant::now() + Duration::from_millis(ends_in_ms);
        let is_earlier = self
            .ends_at
            .is_none_or(|announced| ends_at + ANNOUNCE_MIN_DIFFERENCE < announced);
        if is_earlier {
            self.ends_at = Some(ends_at);
        }
        is_earlier
    }

    /// Returns true if the lease must now be queued for renewal, and marks the lease as queued.
    pub(super) fn queue_renewal(&mut self) -> bool {
        let is_new = self.pending_heartbeat.is_some()
            && self.phase == LeasePhase::Idle
            && self.grace_state != GraceState::Passed;
        if is_new {
            self.phase = LeasePhase::RenewalQueued;
        }
        is_new
    }

    /// Adds quota permits, and drops the permits of locks that the lease does not hold.
    pub(super) fn set_permits(&mut self, permits: Vec<QuotaPermit>) {
        let mut available = std::mem::take(&mut self.permits);
        available.extend(permits);
        let index = |held: &LeaseRef| {
            available
                .iter()
                .position(|permit| permit.lock() == &held.lock)
        };
        let indexes: Vec<_> = self.locks.iter().filter_map(index).collect();
        let available = available.into_iter().enumerate();
        let retained = available.filter(|(index, _)| indexes.contains(index));
        self.permits = retained.map(|(_, permit)| permit).collect();
    }

    /// Leaves the quota permits with the quotas until the lease expires, because the lease leaves
    /// the stream.
    pub(super) fn keep_permits(&mut self, lease_id: LeaseId, quotas: &Quotas) {
        let permits = std::mem::take(&mut self.permits);
        quotas.track_detached(lease_id, permits, self.expiry());
    }

    pub(super) fn validity(&self) -> Duration {
        Duration::from_millis(self.ttl.as_millis())
    }

    /// Returns the time without a heartbeat after which the client counts as silent.
    pub(super) fn silence_limit(&self) -> Duration {
        Duration::from_millis(self.longest_ttl.as_millis()).max(SILENCE_MIN)
    }

    /// Records a validity by which the client may send its heartbeats.
    pub(super) fn note_ttl(&mut self, ttl: Ttl) {
        self.longest_ttl = self.longest_ttl.max(ttl);
    }

    /// Returns the time for which the store keeps the lease after its last renewal.
    pub(super) fn expiry(&self) -> Duration {
        Duration::from_millis(expiry_ms(self.ttl.as_millis()))
    }
}

impl LeaseStream {
    /// Adds a lease to the stream, or adds locks to a lease of the stream. If a lock was released
    /// in the meantime, the next renewal detects that.
    pub(super) fn insert_lease(
        &mut self,
        lease_id: LeaseId,
        number: u32,
        locks: Vec<LeaseRef>,
        grants: &[Grant],
    ) {
        let ttl = grants.iter().map(|grant| grant.ttl).min();
        let ttl = ttl.unwrap_or(Ttl::from_stored(0));
        let grace = grants.iter().find_map(|grant| grant.disconnect_grace_ms);
        let metrics = &self.broker.metrics;
        let lease = match self.leases.entry(lease_id) {
            Entry::Occupied(existing) => {
                let existing = existing.into_mut();
                let is_retained = |held: &LeaseRef| locks.iter().all(|new| new.lock != held.lock);
                existing.locks.retain(is_retained);
                existing.locks.extend(locks);
                existing.ttl = ttl;
                existing.note_ttl(ttl);
                existing.number = existing.number.max(number);
                existing
            }
            Entry::Vacant(new) => new.insert(Box::new(StreamLease {
                number,
                slack: metrics.slack(locks.first().map(|held| &held.lock)),
                locks,
                permits: Vec::new(),
                ttl,
                longest_ttl: ttl,
                grace: None,
                grace_state: GraceState::NotRunning,
                ends_at: None,
                phase: LeasePhase::Idle,
                pending_heartbeat: None,
                commands: VecDeque::new(),
                origin: None,
            })),
        };
        lease.grace = lease.grace.or(grace.map(Duration::from_millis));
        if lease.grace.is_some() {
            let limit = lease.silence_limit();
            self.shortest_silence_limit = Some(
                self.shortest_silence_limit
                    .map_or(limit, |shortest| shortest.min(limit)),
            );
        }
    }

    /// Enqueues a command for a lease, or rejects the command.
    pub(super) fn enqueue_command(&mut self, lease_id: LeaseId, command: LeaseCommand) {
        let error = match self.leases.get_mut(&lease_id) {
            Some(lease) if lease.commands.len() < COMMANDS_MAX => {
                lease.commands.push_back(command);
                return self.run_next(lease_id);
            }
            Some(_) => CallError::TooManyCommands,
            None => CallError::NotHere,
        };
        let call_id = match command {
            LeaseCommand::Release { call_id, .. } => call_id,
            LeaseCommand::Detach { call_id } => Some(call_id),
        };
        if let Some(call_id) = call_id {
            self.send(StreamEvent::Refused { call_id, error });
        }
    }

    /// Releases a lease without a call of the client.
    pub(super) fn release_lease(&mut self, lease_id: LeaseId, scope: ReleaseScope) {
        let command = LeaseCommand::Release {
            call_id: None,
            lock: None,
            scope,
        };
        self.enqueue_command(lease_id, command);
    }

    /// Starts the next command for a lease, unless a command is in progress.
    pub(super) fn run_next(&mut self, lease_id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&lease_id) else {
            return;
        };
        if lease.phase == LeasePhase::Busy {
            return;
        }
        match lease.commands.pop_front() {
            Some(LeaseCommand::Detach { call_id }) => {
                lease.keep_permits(lease_id, &self.broker.quotas);
                self.send(StreamEvent::Done { call_id });
                self.remove_lease(lease_id);
            }
            Some(LeaseCommand::Release {
                call_id,
                lock,
                scope,
            }) => {
                lease.phase = LeasePhase::Busy;
                let is_requested =
                    |held: &&LeaseRef| lock.as_ref().is_none_or(|lock| *lock == held.lock);
                let requested: Vec<_> = lease.locks.iter().filter(is_requested).cloned().collect();
                let (broker, expected_attachment) =
                    (self.broker.clone(), ExpectedAttachment::Stream(self.id));
                let span = lease.event("lease.release", lease_id);
                let release = async move {
                    let result = broker.release(&requested, scope, expected_attachment).await;
                    completion(move |stream| match call_id {
                        Some(call_id) => {
                            stream.on_released(call_id, lease_id, scope, &requested, result);
                        }
                        None => stream.released_by_stream(lease_id, scope, result),
                    })
                };
                self.jobs.push(Box::pin(span.run(release)));
            }
            None if self.phase == Phase::Open && lease.queue_renewal() => {
                self.pending_commands
                    .push_back(PendingCommand::Renew(lease_id));
            }
            None => {}
        }
    }

    /// Renews leases together. The renewal acknowledges the newest heartbeat received before the
    /// command is sent. The heartbeat that caused the renewal may be much older if the store is
    /// overloaded.
    pub(super) fn renew(&mut self, mut lease_ids: Vec<LeaseId>, permits: OwnedSemaphorePermit) {
        let sequence = self.heartbeats.latest();
        let mut requested = Vec::with_capacity(lease_ids.len());
        lease_ids.retain(|lease_id| {
            let Some(lease) = self.leases.get_mut(lease_id) else {
                return false;
            };
            lease.phase = LeasePhase::Busy;
            lease.pending_heartbeat = None;
            lease.slack.renewal_sent();
            requested.push(lease.locks.clone());
            true
        });
        let (broker, stream) = (self.broker.clone(), self.id);
        self.jobs.push(Box::pin(async move {
            let renewals = broker.renew_for_stream(&requested, stream);
            let results = with_permit(permits, RENEWAL_PERMIT_HOLD_MAX, renewals).await;
            completion(move |stream| {
                let renewed = lease_ids.into_iter().zip(&requested).zip(results);
                for ((lease_id, requested), result) in renewed {
                    stream.on_renewed(lease_id, sequence, requested, result);
                }
            })
        }));
    }

    /// Schedules a renewal for the heartbeat with this sequence number, unless a newer one arrives
    /// before.
    pub(super) fn schedule_renewal(&mut self, lease_id: LeaseId, sequence: i64, delay: Duration) {
        self.jobs.push(Box::pin(async move {
            sleep(delay).await;
            completion(move |stream| {
                if let Some(lease) = stream.leases.get_mut(&lease_id) {
                    lease.pending_heartbeat.get_or_insert(sequence);
                    stream.run_next(lease_id);
                }
            })
        }));
    }

    /// Schedules the retry of a release that the stream itself started.
    pub(super) fn schedule_release_retry(&mut self, lease_id: LeaseId, scope: ReleaseScope) {
        self.jobs.push(Box::pin(async move {
            sleep(RETRY_DELAY).await;
            completion(move |stream| stream.release_lease(lease_id, scope))
        }));
    }

    /// Returns the heartbeat interval of the client, or 0 if heartbeats are not needed.
    pub(super) fn interval_ms(&self) -> u64 {
        let leases = self.leases.values();
        let leases = leases.map(|lease| lease.ttl.heartbeat_interval_ms());
        let waiting_interval =
            (!self.pending_calls.is_empty()).then_some(HEARTBEAT_WHILE_WAITING_MS);
        leases.chain(waiting_interval).min().unwrap_or(0)
    }

    /// Handles changes that were made to leases elsewhere. A change is ignored if the lease has
    /// been attached to this stream again since.
    pub(super) fn on_remote_event(&mut self, events: Vec<RemoteLeaseEvent>) {
        for event in events {
            let (lease_id, attachment) = match &event {
                RemoteLeaseEvent::Moved(moved) => (moved.lease_id, moved.from),
                RemoteLeaseEvent::Revoked(revocation) => {
                    (revocation.lease_id, revocation.attachment)
                }
            };
            let lease = self.leases.get(&lease_id);
            if lease.is_some_and(|lease| lease.number <= attachment.number) {
                match event {
                    RemoteLeaseEvent::Moved(_) => self.end_lease(lease_id, LeaseEndedReason::Moved),
                    RemoteLeaseEvent::Revoked(revocation) => self.on_revoked(revocation),
                }
            }
        }
    }

    /// Handles a revocation by an operator. Without grace, a renewal is scheduled, which ends the
    /// lease here when the store rejects the renewal.
    fn on_revoked(&mut self, revocation: Revocation) {
        let lease_id = revocation.lease_id;
        let sequence = self.heartbeats.latest();
        let Some(lease) = self.leases.get_mut(&lease_id) else {
            return;
        };
        if lease.should_announce_end(revocation.grace_ms) {
            self.send(StreamEvent::ReleaseRequested {
                lease_id,
                grace_ms: revocation.grace_ms,
                reason: Some(revocation.reason),
            });
        }
        if revocation.grace_ms == 0 {
            self.schedule_renewal(lease_id, sequence, REVOKE_CHECK_DELAY);
        }
    }

    /// Ends a lease on this stream and notifies the client.
    pub(super) fn end_lease(&mut self, lease_id: LeaseId, reason: LeaseEndedReason) {
        let Some(lease) = self.leases.get_mut(&lease_id) else {
            return;
        };
        lease.trace_end(lease_id, &reason);
        if let Some(explanation) = reason.broker_stop_reason() {
            self.broker.lease_ends.set_end_reason(lease_id, explanation);
            lease.keep_permits(lease_id, &self.broker.quotas);
        } else if reason.is_held_until_expiry() {
            let locks = lease.locks.iter().map(|held| held.lock.clone());
            let (locks, expires_in) = (locks.collect(), lease.expiry());
            self.broker
                .quotas
                .track_until_expiry(lease_id, locks, expires_in);
        }
        self.send(StreamEvent::Ended { lease_id, reason });
        self.remove_lease(lease_id);
    }

    /// Removes a lease from the stream and rejects its queued commands.
    pub(super) fn remove_lease(&mut self, lease_id: LeaseId) {
        if let Some(lease) = self.leases.remove(&lease_id) {
            for command in lease.commands {
                self.enqueue_command(lease_id, command);
            }
        }
    }
}
