//! Pending acquires: sent again on every new stream until they have a response.

use std::{sync::Arc, time::Duration};

use leasehold_proto::v1::{
    CancelAcquire, ErrorReason, Granted, HoldAcquire, HoldAcquireAll, Queued, Refused,
    hold_request::Message as Request,
};
use tokio::sync::oneshot;

use super::{Session, failover::jittered, leases::HeldLease, stream_connection::CallKind};
use crate::{
    clock,
    command::{AcquireCommand, AcquireMessage, AcquireParams},
    error::{
        Error, ErrorDetail, LostReason, closure, duration, from_refused, holder, is_retryable,
        recovery, recovery_of,
    },
    guard::{Guard, Held},
    queue_position::{QueuePosition, QueuePositionSender},
    runtime::ClientRuntime,
    session::{CommandSender, StreamSlot},
};

/// Time after the end of its wait for which an acquire of unknown outcome is repeated.
const RETRY_WINDOW: Duration = Duration::from_secs(5);
/// Pause before an acquire is repeated after a retryable rejection.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Pause before a failover from a broker that cannot reach its store.
const STORE_FAILOVER_DELAY: Duration = Duration::from_secs(2);

pub(super) struct PendingAcquire {
    pub(super) params: AcquireParams,
    pub(super) slot: Option<StreamSlot>,
    under: Option<Held>,
    /// End of the wait in the queue.
    deadline: Duration,
    attach_number: i32,
    /// Call id of the latest attempt; 0: not sent on this stream.
    call_id: i64,
    /// Latest rejection that allows a repetition.
    last_rejection: Option<Error>,
    position: QueuePositionSender,
    /// `None` if the caller was dropped.
    reply: Option<oneshot::Sender<Result<Guard, Error>>>,
    session_access: (CommandSender, Arc<ClientRuntime>),
}

impl PendingAcquire {
    /// Completes the acquire. If the caller was dropped, a granted guard is dropped and releases
    /// its lock.
    pub(super) fn complete(&mut self, result: Result<Guard, Error>) {
        if let Some(reply) = self.reply.take() {
            let _ = reply.send(result);
        }
    }

    pub(super) fn session_access(&self) -> (CommandSender, Arc<ClientRuntime>) {
        self.session_access.clone()
    }

    pub(super) fn attach_number(&self) -> i32 {
        self.attach_number
    }

    /// Reports a recovery of the store, for which the call was rejected, to the caller.
    fn report_recovery(&self, message: &Refused) {
        let Some(next) = recovery_of(message).map(QueuePosition::not_queued) else {
            return;
        };
        self.position.send_if_modified(|last| {
            let is_new = !last.as_ref().is_some_and(|last| last.is_repeated_by(&next));
            if is_new {
                *last = Some(next);
            }
            is_new
        });
    }

    fn is_under(&self, lease_id: &str) -> bool {
        self.under
            .as_ref()
            .is_some_and(|held| held.lease_id() == lease_id)
    }
}

impl Session {
    pub(super) fn add_acquire(&mut self, command: AcquireCommand) {
        let request_id = command.params.request_id.clone();
        let pending = PendingAcquire {
            params: command.params,
            slot: command.slot,
            under: command.under,
            deadline: clock::now().saturating_add(command.wait),
            attach_number: 0,
            call_id: 0,
            last_rejection: None,
            position: command.position,
            reply: Some(command.reply),
            session_access: (command.commands, command.runtime),
        };
        self.schedule_acquire(&pending);
        self.pending_acquires.insert(request_id.clone(), pending);
        self.send_acquire(&request_id);
    }

    /// Sends an acquire if it can be sent now. An acquire under a lease is sent only while that
    /// lease is attached to this stream.
    pub(super) fn send_acquire(&mut self, request_id: &str) {
        let (Some(stream), Some(pending)) =
            (&mut self.stream, self.pending_acquires.get_mut(request_id))
        else {
            return;
        };
        let mut under = None;
        if let Some(held) = &pending.under {
            let held_lease = self.leases.get(held.lease_id());
            let Some(held_lease) = held_lease.filter(|held_lease| !held_lease.is_released()) else {
                let reason = held.lost_reason().unwrap_or(LostReason::Released);
                pending.complete(Err(Error::LeaseLost(reason)));
                self.pending_acquires.remove(request_id);
                return;
            };
            if !held_lease.is_attached() {
                return;
            }
            under = Some(held_lease.lease().clone());
            pending.attach_number = held_lease.attach_number();
        } else {
            pending.attach_number += 1;
        }
        // An acquire whose wait has ended is still sent once, without waiting.
        let remaining = pending.deadline.saturating_sub(clock::now());
        let (message, attach_number) = (
            pending.params.message(remaining, under),
            pending.attach_number,
        );
        let traceparent = pending.params.traceparent.clone();
        pending.call_id =
            stream.send_call(
                CallKind::Acquire(request_id.to_owned()),
                |call_id| match message {
                    AcquireMessage::One(request) => Request::Acquire(HoldAcquire {
                        call_id,
                        request: Some(request),
                        attach_number,
                        traceparent,
                    }),
                    AcquireMessage::Several(request) => Request::AcquireAll(HoldAcquireAll {
                        call_id,
                        request: Some(request),
                        attach_number,
                        traceparent,
                    }),
                },
            );
    }

    /// Sends the acquires that waited for the attachment of their lease. If the lease has ended,
    /// they fail.
    pub(super) fn send_acquires_under(&mut self, lease_id: &str) {
        let pending_acquires = self.pending_acquires.iter();
        let pending_acquires = pending_acquires
            .filter(|(_, pending)| pending.is_under(lease_id) && pending.call_id == 0);
        let pending_acquires: Vec<_> = pending_acquires
            .map(|(request_id, _)| request_id.clone())
            .collect();
        for request_id in pending_acquires {
            self.send_acquire(&request_id);
        }
    }

    /// Cancels an acquire whose caller was dropped. The broker sends a rejection, or a grant that
    /// is then released.
    pub(super) fn cancel_acquire(&mut self, request_id: &str) {
        let Some(pending) = self.pending_acquires.get_mut(request_id) else {
            return;
        };
        pending.reply = None;
        let call_id = pending.call_id;
        match &self.stream {
            Some(stream) if call_id > 0 => stream.send(Request::Cancel(CancelAcquire { call_id })),
            _ => {
                self.pending_acquires.remove(request_id);
            }
        }
    }

    pub(super) fn on_queued(&mut self, queued: &Queued) {
        let kind = self.stream.as_ref();
        let kind = kind.and_then(|stream| stream.pending(queued.call_id));
        let Some(CallKind::Acquire(request_id)) = kind else {
            return;
        };
        let pending = self.pending_acquires.get(request_id);
        if let Some(pending) = pending {
            pending.position.send_replace(Some(QueuePosition {
                position: u32::try_from(queued.position).unwrap_or_default(),
                queue_length: u32::try_from(queued.queue_length).unwrap_or_default(),
                holders: queued.holders.iter().map(holder).collect(),
                closure: queued.closure.as_ref().map(closure).map(Box::new),
                recovery: queued.recovery.as_ref().map(recovery).map(Box::new),
            }));
        }
    }

    pub(super) fn on_granted(&mut self, granted: Granted) {
        let Some((CallKind::Acquire(request_id), call_sent_at)) =
            self.complete_call(granted.call_id)
        else {
            return;
        };
        let Some(lease) = granted.lease else { return };
        let Some(mut pending) = self.pending_acquires.remove(&request_id) else {
            // An earlier attempt was answered as well; the lease belongs to its guard.
            return;
        };
        let heartbeat_sent_at = self
            .stream
            .as_ref()
            .and_then(|stream| stream.heartbeat_sent_at(granted.as_of_sequence));
        // The broker sent the acquire to its store after it had received both messages, so the
        // later one counts. After an idle period the heartbeat is the earlier one.
        let sent = heartbeat_sent_at.map_or(call_sent_at, |heartbeat_sent_at| {
            heartbeat_sent_at.max(call_sent_at)
        });
        if pending.under.is_none() {
            self.adopt(lease, pending, sent);
        } else if let Some(guard) = self.add_to_lease(lease, &pending) {
            pending.complete(Ok(guard));
        } else {
            pending.complete(Err(Error::LeaseLost(LostReason::Expired)));
        }
    }

    /// Returns the guard of a call under a lease. `None`: the lease has ended.
    fn add_to_lease(
        &mut self,
        lease: leasehold_proto::v1::Lease,
        pending: &PendingAcquire,
    ) -> Option<Guard> {
        let Some(held_lease) = self.leases.get_mut(&lease.lease_id) else {
            // The call has attached the lease to this stream, where it must not be renewed.
            self.detach(lease.lease_id);
            return None;
        };
        Some(held_lease.add_locks(lease, &pending.params, pending.session_access()))
    }

    pub(super) fn on_refused(&mut self, message: &Refused) {
        match self.complete_call(message.call_id) {
            Some((CallKind::Acquire(request_id), _)) => {
                self.on_acquire_refused(&request_id, message)
            }
            Some((CallKind::Attach(lease_id), _)) => self.on_attach_refused(&lease_id, message),
            Some((CallKind::Release(lease_id, None), _)) => {
                self.on_release_refused(&lease_id, message)
            }
            Some((CallKind::Release(lease_id, Some(part)), _)) => {
                self.on_partial_release(&lease_id, part, Err(message));
            }
            Some((CallKind::Credential(_), _)) => self.on_credential_rejected(&message.message),
            Some((CallKind::Ignored, _)) | None => {}
        }
    }

    fn on_acquire_refused(&mut self, request_id: &str, message: &Refused) {
        let Some(pending) = self.pending_acquires.get_mut(request_id) else {
            return;
        };
        if pending.call_id != message.call_id {
            return;
        }
        pending.call_id = 0;
        if pending.reply.is_none() || !is_retryable(message) {
            pending.complete(Err(from_refused(message)));
            self.pending_acquires.remove(request_id);
            return;
        }
        pending.last_rejection = Some(from_refused(message));
        pending.report_recovery(message);
        let now = clock::now();
        let kind = CallKind::Acquire(request_id.to_owned());
        self.retries.push((now + jittered(RETRY_DELAY), kind));
        self.failover_if_unhelpful(message);
    }

    /// Starts a failover if the broker is draining or cannot reach its store.
    fn failover_if_unhelpful(&mut self, message: &Refused) {
        let has_other_brokers = self.endpoints.list.len() > 1;
        let reason = message.reason();
        if reason == ErrorReason::Draining {
            self.start_failover(Duration::ZERO);
        } else if reason == ErrorReason::StoreUnavailable && has_other_brokers {
            self.start_failover(jittered(STORE_FAILOVER_DELAY));
        }
    }

    /// Fails acquires that have no response [`RETRY_WINDOW`] after the end of their wait.
    pub(super) fn expire_pending(&mut self, now: Duration) {
        let has_expired = |pending: &PendingAcquire| {
            let give_up_at = pending.deadline.saturating_add(RETRY_WINDOW);
            pending.reply.is_some() && now >= give_up_at
        };
        let expired = self
            .pending_acquires
            .iter()
            .filter(|(_, pending)| has_expired(pending));
        let expired: Vec<_> = expired.map(|(request_id, _)| request_id.clone()).collect();
        for request_id in expired {
            let reason = match &self.stream {
                Some(_) => "the broker does not answer".to_owned(),
                None => self.failover.unavailable_reason(),
            };
            if let Some(pending) = self.pending_acquires.get_mut(&request_id) {
                let rejection = pending.last_rejection.take();
                pending.complete(Err(
                    rejection.unwrap_or_else(|| Error::Unavailable(ErrorDetail::new(reason)))
                ));
            }
            self.cancel_acquire(&request_id);
        }
    }

    /// Fails all pending acquires because no broker accepts the credential, instead of repeating
    /// them.
    pub(super) fn fail_all_unauthenticated(&mut self) {
        let reason = self.failover.unavailable_reason();
        for (_, mut pending) in self.pending_acquires.drain() {
            pending.complete(Err(Error::Unauthenticated(ErrorDetail::new(
                reason.clone(),
            ))));
        }
    }

    /// Marks all pending acquires as not sent, because their stream has ended. Acquires whose
    /// caller was dropped are removed: the broker cancels attempts that are not repeated.
    pub(super) fn mark_all_unsent(&mut self) {
        self.pending_acquires
            .retain(|_, pending| pending.reply.is_some());
        for pending in self.pending_acquires.values_mut() {
            pending.call_id = 0;
        }
    }
}

impl HeldLease {
    /// Returns the acquire of an undelivered lease, to be sent again.
    pub(super) fn into_pending_acquire(self) -> Option<PendingAcquire> {
        let (slot, pending) = self.into_undelivered()?;
        let slot = Some(slot);
        Some(PendingAcquire {
            slot,
            call_id: 0,
            ..pending
        })
    }
}

pub(super) fn ttl_of(lease: &leasehold_proto::v1::Lease) -> Duration {
    duration(lease.ttl)
}
