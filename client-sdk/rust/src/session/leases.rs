//! Leases of a session: adoption, renewal, attachment and loss.

mod releases;

use std::{collections::HashMap, sync::Arc, time::Duration};

use leasehold_proto::v1::{
    AttachLease, DetachLease, Grant, HeartbeatAck, Lease, LeaseAttached, LeaseEndReason,
    LeaseEnded, LeaseExtended, Refused, hold_request::Message as Request,
};
use tracing::warn;

use self::releases::{PartialRelease, PendingRelease};
use super::{
    Session,
    failover::jittered,
    pending_acquires::{PendingAcquire, ttl_of},
    stream_connection::CallKind,
};
use crate::{
    clock,
    command::AcquireParams,
    error::{Error, ErrorDetail, LostReason, duration, is_retryable, lost_reason},
    guard::Guard,
    runtime::ClientRuntime,
    session::{CommandSender, StreamSlot},
    target::lock_ref,
    validity::LeaseValidity,
};

const RETRY_DELAY: Duration = Duration::from_millis(100);

/// A lease that is attached to the stream, or waits to be attached to the next one.
pub(super) struct HeldLease {
    lease: Lease,
    validity: Arc<LeaseValidity>,
    slot: StreamSlot,
    attach_number: i32,
    is_attached: bool,
    /// Time of the grant.
    granted_at: Duration,
    /// Time at which the lease was attached to this stream, if it was granted on another one.
    attached_at: Option<Duration>,
    valid_until: Duration,
    ttl: Duration,
    heartbeat_interval: Duration,
    /// Number of guards that have not been released.
    guard_count: usize,
    /// Acquire that the lease was granted to, until enough validity is confirmed to deliver the
    /// lease.
    undelivered: Option<Box<PendingAcquire>>,
    release: Option<PendingRelease>,
    partial_releases: HashMap<u64, PartialRelease>,
}

impl HeldLease {
    pub(super) fn is_attached(&self) -> bool {
        self.is_attached
    }

    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(super) fn attach_number(&self) -> i32 {
        self.attach_number
    }

    pub(super) fn is_undelivered(&self) -> bool {
        self.undelivered.is_some()
    }

    pub(super) fn is_released(&self) -> bool {
        self.release.is_some()
    }

    /// Returns the deadline of the lease: of its release, of its delivery, or of its validity.
    pub(super) fn deadline(&self) -> Duration {
        match (&self.release, &self.undelivered) {
            (Some(release), _) => release.ended_at(),
            (None, Some(_)) => self.granted_at + self.ttl,
            (None, None) => self.validity.valid_until(),
        }
    }

    /// Returns the time at which the lease needs a heartbeat. `last`: time of the last heartbeat.
    pub(super) fn next_heartbeat_at(&self, last: Option<Duration>) -> Duration {
        let Some(last) = last else {
            return Duration::ZERO;
        };
        let interval = self.heartbeat_interval.min(self.ttl / 3);
        // Leases that were just attached or were granted late share one early heartbeat, because
        // their broker is busy.
        let earliest = last + interval / 4;
        if self
            .attached_at
            .is_some_and(|attached_at| attached_at > last)
        {
            earliest
        } else if self.granted_at > last {
            let counts_from = self.valid_until.saturating_sub(self.ttl);
            (counts_from + interval).clamp(earliest, last + interval)
        } else {
            last + interval
        }
    }

    /// Returns the time for which the broker may leave heartbeats unanswered.
    pub(super) fn silence_timeout(&self) -> Duration {
        self.ttl / 4
    }

    pub(super) fn into_undelivered(self) -> Option<(StreamSlot, PendingAcquire)> {
        Some((self.slot, *self.undelivered?))
    }

    /// Merges the grants of a call under the lease, and returns the guard of the call.
    pub(super) fn add_locks(
        &mut self,
        granted: Lease,
        params: &AcquireParams,
        session_access: (CommandSender, Arc<ClientRuntime>),
    ) -> Guard {
        self.guard_count += 1;
        self.merge_grants(granted, params);
        self.guard(params, session_access)
    }

    /// Merges the grants of the call's own locks; the answer may omit grants added by other calls.
    fn merge_grants(&mut self, mut granted: Lease, params: &AcquireParams) {
        granted.grants.retain(|grant| is_requested(params, grant));
        let others = self.lease.grants.drain(..);
        granted
            .grants
            .extend(others.filter(|grant| !is_requested(params, grant)));
        self.lease = granted;
    }

    fn guard(
        &self,
        params: &AcquireParams,
        session_access: (CommandSender, Arc<ClientRuntime>),
    ) -> Guard {
        let grants = self.lease.grants.iter();
        let grants = grants.filter(|grant| is_requested(params, grant));
        let (grants, trust) = (grants.cloned().collect(), Arc::clone(&self.validity));
        let request_id = params.request_id.clone();
        Guard::new(
            &self.lease.lease_id,
            grants,
            request_id,
            trust,
            session_access,
        )
    }

    /// Ends the lease. Returns true if the lease was not delivered yet.
    fn end_validity(&mut self, reason: LostReason) -> bool {
        self.validity.expire(reason.clone());
        // Dropping the senders notifies the callers that wait for a response.
        self.partial_releases.clear();
        let undelivered = self.undelivered.take();
        let is_undelivered = undelivered.is_some();
        if let Some(mut pending) = undelivered {
            pending.complete(Err(Error::LeaseLost(reason)));
        }
        is_undelivered
    }

    /// Ends the lease because the client closes. Returns the release that has no response yet, if
    /// any.
    pub(super) fn into_release(mut self) -> Option<PendingRelease> {
        self.end_validity(LostReason::Closed);
        self.release
    }
}

fn is_requested(params: &AcquireParams, grant: &Grant) -> bool {
    let granted = grant.target.as_ref().map(lock_ref);
    let mut requested = params.targets.iter().map(lock_ref);
    granted.is_some_and(|granted| requested.any(|requested| requested == granted))
}

impl Session {
    /// Adds the lease that was granted to a call, with its validity counted from `sent`.
    pub(super) fn adopt(&mut self, lease: Lease, mut pending: PendingAcquire, sent: Duration) {
        let Some(slot) = pending.slot.take() else {
            return;
        };
        let (lease_id, ttl) = (lease.lease_id.clone(), ttl_of(&lease));
        let interval = duration(lease.heartbeat_interval);
        let held_lease = HeldLease {
            validity: Arc::default(),
            slot,
            attach_number: pending.attach_number(),
            is_attached: true,
            granted_at: clock::now(),
            attached_at: None,
            valid_until: sent + ttl,
            ttl,
            heartbeat_interval: if interval.is_zero() {
                ttl / 3
            } else {
                interval
            },
            guard_count: 1,
            undelivered: Some(Box::new(pending)),
            release: None,
            partial_releases: HashMap::new(),
            lease,
        };
        self.leases.insert(lease_id.clone(), held_lease);
        self.deliver(&lease_id);
        self.schedule_lease(&lease_id);
    }

    /// Delivers a new lease to its caller if half of its validity is left. Otherwise the
    /// confirmation of the next heartbeat delivers it, which is due soon.
    fn deliver(&mut self, lease_id: &str) {
        let now = clock::now();
        let Some(held_lease) = self.leases.get_mut(lease_id) else {
            return;
        };
        if now + held_lease.ttl / 2 > held_lease.valid_until {
            return;
        }
        if let Some(mut pending) = held_lease.undelivered.take() {
            held_lease
                .validity
                .start(held_lease.valid_until, held_lease.ttl);
            pending.complete(Ok(
                held_lease.guard(&pending.params, pending.session_access())
            ));
        }
    }

    pub(super) fn on_heartbeat_ack(&mut self, ack: HeartbeatAck) {
        let sent = self
            .stream
            .as_ref()
            .and_then(|stream| stream.heartbeat_sent_at(ack.sequence));
        let Some(sent) = sent else { return };
        for extended in ack.leases {
            self.on_extended(sent, &extended);
        }
    }

    fn on_extended(&mut self, sent: Duration, extended: &LeaseExtended) {
        let Some(held_lease) = self.leases.get_mut(&extended.lease_id) else {
            return;
        };
        if usize::try_from(extended.grant_count) != Ok(held_lease.lease.grants.len()) {
            return;
        }
        held_lease.ttl = duration(extended.ttl);
        held_lease.valid_until = held_lease.valid_until.max(sent + held_lease.ttl);
        if held_lease.undelivered.is_some() {
            self.deliver(&extended.lease_id);
        } else if held_lease.release.is_none()
            && !held_lease
                .validity
                .extend(sent + held_lease.ttl, held_lease.ttl)
        {
            self.expire(&extended.lease_id);
        }
        self.schedule_lease(&extended.lease_id);
    }

    /// Stops renewing a lease whose validity has ended. The lock is released only after the guarded
    /// work has stopped; see [`Self::keep_lost`].
    pub(super) fn expire(&mut self, lease_id: &str) {
        let Some(mut held_lease) = self.leases.remove(lease_id) else {
            return;
        };
        warn!(lease_id, "a lock is lost: no renewal was confirmed in time");
        if held_lease.is_attached {
            self.detach(lease_id.to_owned());
        }
        let is_undelivered = held_lease.end_validity(LostReason::Expired);
        self.send_acquires_under(lease_id);
        self.keep_lost_lease(lease_id, held_lease, is_undelivered);
    }

    pub(super) fn detach(&mut self, lease_id: String) {
        if let Some(stream) = &mut self.stream {
            stream.send_call(CallKind::Ignored, |call_id| {
                Request::Detach(DetachLease { call_id, lease_id })
            });
        }
    }

    /// Sends the attachment of a lease to this stream.
    pub(super) fn attach(&mut self, lease_id: &str) {
        let (Some(stream), Some(held_lease)) = (&mut self.stream, self.leases.get_mut(lease_id))
        else {
            return;
        };
        if held_lease.release.is_some() {
            return self.send_release(lease_id);
        }
        if !held_lease.validity.is_valid() {
            return self.expire(lease_id);
        }
        held_lease.attach_number += 1;
        let (lease, attach_number) = (Some(held_lease.lease.clone()), held_lease.attach_number);
        stream.send_call(CallKind::Attach(lease_id.to_owned()), |call_id| {
            Request::Attach(AttachLease {
                call_id,
                lease,
                attach_number,
            })
        });
    }

    pub(super) fn on_attached(&mut self, attached: &LeaseAttached) {
        self.complete_call(attached.call_id);
        let lease_id = &attached.lease_id;
        let Some(held_lease) = self.leases.get_mut(lease_id) else {
            // The lease was lost before the response arrived.
            return self.detach(lease_id.clone());
        };
        (held_lease.is_attached, held_lease.attached_at) = (true, Some(clock::now()));
        self.next_deadline = Duration::ZERO;
        if held_lease.release.is_some() {
            return self.send_release(lease_id);
        }
        let partial_releases: Vec<_> = held_lease.partial_releases.keys().copied().collect();
        for part in partial_releases {
            self.send_partial_release(lease_id, part);
        }
        self.send_acquires_under(lease_id);
    }

    pub(super) fn on_attach_refused(&mut self, lease_id: &str, message: &Refused) {
        if is_retryable(message) {
            let kind = CallKind::Attach(lease_id.to_owned());
            self.retries
                .push((clock::now() + jittered(RETRY_DELAY), kind));
            return;
        }
        match self.leases.get(lease_id) {
            Some(held_lease) if held_lease.release.is_some() => self.send_release(lease_id),
            Some(_) => self.on_lost(lease_id, lost_reason(message.reason(), &message.message)),
            None => {}
        }
    }

    pub(super) fn on_ended(&mut self, ended: &LeaseEnded) {
        let reason = match ended.reason() {
            LeaseEndReason::Released => LostReason::Released,
            LeaseEndReason::Expired => LostReason::Expired,
            LeaseEndReason::Revoked => LostReason::Revoked(ended.message.clone()),
            LeaseEndReason::StoreLost => LostReason::StoreLost,
            LeaseEndReason::MaxHold => LostReason::MaxHold,
            LeaseEndReason::Moved => LostReason::Moved,
            LeaseEndReason::CredentialExpired => LostReason::CredentialExpired,
            LeaseEndReason::Unspecified => LostReason::Other(ended.message.clone()),
        };
        self.on_lost(&ended.lease_id, reason);
    }

    fn on_lost(&mut self, lease_id: &str, reason: LostReason) {
        let Some(mut held_lease) = self.leases.remove(lease_id) else {
            return;
        };
        if let Some(release) = held_lease.release.take() {
            return release.complete_with_loss(reason);
        }
        warn!(lease_id, why = %reason, "a lock is lost");
        let needs_release = reason.needs_release();
        let is_undelivered = held_lease.end_validity(reason);
        self.send_acquires_under(lease_id);
        if needs_release {
            self.keep_lost_lease(lease_id, held_lease, is_undelivered);
        }
    }

    /// Stores a lost lease until the work under it has stopped. Then its lock is released, before
    /// the lease expires in the store.
    fn keep_lost_lease(&mut self, lease_id: &str, mut held_lease: HeldLease, is_undelivered: bool) {
        held_lease.is_attached = false;
        self.lost_leases.insert(lease_id.to_owned(), held_lease);
        if is_undelivered {
            self.release_lost(lease_id);
        }
    }

    /// Drops an undelivered lease whose validity no heartbeat has extended in time.
    pub(super) fn discard_undelivered(&mut self, lease_id: &str) {
        let Some(mut held_lease) = self.leases.remove(lease_id) else {
            return;
        };
        self.detach(lease_id.to_owned());
        if let Some(mut pending) = held_lease.undelivered.take() {
            let message = "the grant arrived after the validity of its lease had ended";
            pending.complete(Err(Error::Unavailable(ErrorDetail::new(message))));
        }
    }

    /// Marks all leases and pending acquires as detached from the stream. Undelivered leases become
    /// pending acquires again.
    pub(super) fn on_stream_lost(&mut self) {
        self.retries.clear();
        self.mark_all_unsent();
        for held_lease in self.leases.values_mut() {
            held_lease.is_attached = false;
        }
        let undelivered = self
            .leases
            .extract_if(|_, held_lease| held_lease.undelivered.is_some());
        let undelivered: Vec<_> = undelivered
            .filter_map(|(_, held_lease)| held_lease.into_pending_acquire())
            .collect();
        for pending in undelivered {
            self.pending_acquires
                .insert(pending.params.request_id.clone(), pending);
        }
    }

    /// Attaches all leases to a new stream, and sends all pending acquires on it.
    pub(super) fn resume_all(&mut self) {
        let leases: Vec<_> = self.leases.keys().cloned().collect();
        for lease_id in leases {
            self.attach(&lease_id);
        }
        let pending_acquires: Vec<_> = self.pending_acquires.keys().cloned().collect();
        for request_id in pending_acquires {
            self.send_acquire(&request_id);
        }
    }
}
