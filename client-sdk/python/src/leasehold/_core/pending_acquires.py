"""Pending acquires: sent again on every new stream until they have a response."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold._core import clock, convert
from leasehold._core.command import AcquireCommand, QueuePosition
from leasehold._core.failover import jittered
from leasehold._core.lease_handle import LeaseHandle
from leasehold._core.stream_connection import CallKind, CallSubject
from leasehold.errors import (
    AcquireError,
    Closed,
    Error,
    Held,
    LeaseLost,
    Loss,
    LostReason,
    StoreRecovery,
    Unauthenticated,
    Unavailable,
    WaitTimeout,
)
from leasehold.v1 import lock_service_pb2 as pb
from leasehold.v1 import types_pb2 as types

if TYPE_CHECKING:
    from leasehold._core.session import Session

#: Time after the end of its wait for which an acquire of unknown outcome is repeated, in seconds.
_RETRY_WINDOW = 5.0
#: Pause before an acquire is repeated after a retryable rejection, in seconds.
_RETRY_DELAY = 0.2
#: Pause before a failover from a broker that cannot reach its store, in seconds.
_STORE_FAILOVER_DELAY = 2.0
#: Longest interval of heartbeats while an acquire is pending, in seconds.
_PENDING_HEARTBEAT_INTERVAL_MAX = 2.0
#: Shortest TTL that a broker grants, in seconds.
_TTL_MIN = 1.0


class PendingAcquire:
    """A pending acquire."""

    def __init__(self, command: AcquireCommand) -> None:
        self.params = command.params
        self.under = command.under
        #: End of the wait in the queue.
        self.deadline = clock.now() + command.wait
        self.attach_number = 0
        #: Call id of the latest attempt; 0: not sent on this stream.
        self.call_id = 0
        #: Latest rejection that allows a repetition.
        self.last_rejection: AcquireError | None = None
        #: Recovery that was reported last, for a call that is not in the queue.
        self._reported_recovery: StoreRecovery | None = None
        #: None if the caller no longer waits.
        self.receiver: object | None = command.receiver
        self._command = command
        ttl = 3 * _PENDING_HEARTBEAT_INTERVAL_MAX if command.params.ttl is None else max(command.params.ttl, _TTL_MIN)
        #: Interval of heartbeats while the acquire is pending, in seconds.
        self.heartbeat_interval = min(ttl / 3, _PENDING_HEARTBEAT_INTERVAL_MAX)

    def complete(self, result: LeaseHandle | Error) -> None:
        """Completes the acquire. If the caller no longer waits, a granted handle is dropped and releases its locks."""
        if self.receiver is not None:
            self.receiver = None
            self._command.receiver.on_result(result)

    def notify_position(self, position: QueuePosition) -> None:
        """Sends the queue position to the caller."""
        self._reported_recovery = None if position.position else position.recovery
        if self.receiver is not None:
            self._command.receiver.on_queue_position(position)

    def report_recovery(self, refused: pb.Refused) -> None:
        """Reports that the call is not in the queue because the store recovers, once for each recovery."""
        last, recovery = self._reported_recovery, convert.recovery_from_refused(refused)
        if recovery is None or (last is not None and (last.cause, last.since) == (recovery.cause, recovery.since)):
            return
        self.notify_position(QueuePosition(0, 0, [], recovery=recovery))

    def error_from(self, refused: pb.Refused) -> AcquireError:
        """Converts the rejection to the error of the caller."""
        error = convert.error_from_refused(refused)
        if isinstance(error, Held) and self._command.wait > 0:
            # The acquire was repeated without waiting, because its wait had ended. To its caller the wait timed out.
            return WaitTimeout(error.contention)
        return error

    def is_under(self, lease_id: str) -> bool:
        """Returns true if the acquire is under this lease."""
        return self.under is not None and self.under.lease_id == lease_id


class PendingAcquires:
    """The pending acquires of one session, by request id."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.all: dict[str, PendingAcquire] = {}

    def add(self, command: AcquireCommand) -> None:
        """Adds an acquire and sends it."""
        if self._session.is_closed:
            return command.receiver.on_result(Closed())
        self.all[command.params.request_id] = PendingAcquire(command)
        self.send(command.params.request_id)

    def send(self, request_id: str) -> None:
        """Sends an acquire if it can be sent now.

        An acquire under a lease is sent only while that lease is attached to this stream.
        """
        connection, pending = self._session.connection, self.all.get(request_id)
        if connection is None or pending is None:
            return
        under: types.Lease | None = None
        if pending.under is not None:
            held_lease = self._session.leases.all.get(pending.under.lease_id)
            if held_lease is None or held_lease.pending_release is not None:
                loss = pending.under.validity.loss() or Loss(LostReason.RELEASED)
                del self.all[request_id]
                return pending.complete(LeaseLost(loss))
            if not held_lease.is_attached:
                return
            under, pending.attach_number = held_lease.lease, held_lease.attach_number
        else:
            pending.attach_number += 1
        # An acquire whose wait has ended is still sent once, without waiting.
        remaining = max(0.0, pending.deadline - clock.now())
        request = pending.params.to_message(remaining, under)
        pending.call_id = connection.next_call_id()
        ids = {"call_id": pending.call_id, "attach_number": pending.attach_number}
        traceparent = pending.params.traceparent
        if isinstance(request, pb.AcquireRequest):
            acquire = pb.HoldAcquire(request=request, traceparent=traceparent, **ids)
            message = pb.HoldRequest(acquire=acquire)
        else:
            acquire_all = pb.HoldAcquireAll(request=request, traceparent=traceparent, **ids)
            message = pb.HoldRequest(acquire_all=acquire_all)
        connection.send_call(CallSubject(CallKind.ACQUIRE, request_id), message, pending.call_id)

    def send_under(self, lease_id: str) -> None:
        """Sends the acquires that waited for the attachment of their lease. If the lease has ended, they fail."""
        request_ids = [key for key, pending in self.all.items() if pending.is_under(lease_id) and not pending.call_id]
        for request_id in request_ids:
            self.send(request_id)

    def cancel(self, request_id: str) -> None:
        """Cancels an acquire whose caller no longer waits.

        The broker sends a rejection, or a grant that is then released.
        """
        pending = self.all.get(request_id)
        if pending is None:
            return self._session.leases.cancel_undelivered(request_id)
        pending.receiver = None
        if self._session.connection is not None and pending.call_id:
            cancel = pb.CancelAcquire(call_id=pending.call_id)
            self._session.connection.send(pb.HoldRequest(cancel=cancel))
        else:
            del self.all[request_id]

    def on_queued(self, queued: pb.Queued) -> None:
        """Handles the queue position of an acquire."""
        subject = self._session.connection.pending(queued.call_id) if self._session.connection else None
        pending = self.all.get(subject.key) if subject is not None and subject.kind is CallKind.ACQUIRE else None
        if pending is not None:
            holders = [convert.to_holder(holder) for holder in queued.holders]
            closure, recovery = convert.closure_of(queued), convert.recovery_of(queued)
            pending.notify_position(QueuePosition(queued.position, queued.queue_length, holders, closure, recovery))

    def on_granted(self, granted: pb.Granted) -> None:
        """Handles the grant of an acquire."""
        connection = self._session.connection
        completed = connection.complete(granted.call_id) if connection else None
        if connection is None or completed is None or completed[0].kind is not CallKind.ACQUIRE:
            return
        pending = self.all.pop(completed[0].key, None)
        if pending is None:
            # An earlier attempt was granted as well; the lease belongs to its handle.
            return
        heartbeat_sent_at = connection.heartbeat_sent_at(granted.as_of_sequence)
        # The broker sent the acquire to its store after it had received both messages, so the later one counts. After
        # an idle period the heartbeat is the earlier one.
        sent_at = completed[1] if heartbeat_sent_at is None else max(completed[1], heartbeat_sent_at)
        if pending.under is None:
            return self._session.leases.adopt(granted.lease, pending, sent_at)
        handle = self._session.leases.add_locks(granted.lease, pending)
        pending.complete(LeaseLost(Loss(LostReason.EXPIRED)) if handle is None else handle)

    def on_refused(self, request_id: str, refused: pb.Refused) -> None:
        """Handles the rejection of an acquire, which is final or is followed by a repetition."""
        pending = self.all.get(request_id)
        if pending is None or pending.call_id != refused.call_id:
            return
        pending.call_id = 0
        if pending.receiver is None or not convert.is_retryable(refused):
            del self.all[request_id]
            return pending.complete(pending.error_from(refused))
        pending.last_rejection = convert.error_from_refused(refused)
        pending.report_recovery(refused)
        self._session.schedule_retry(jittered(_RETRY_DELAY), CallSubject(CallKind.ACQUIRE, request_id))
        # The acquire is repeated at another broker if this one is draining or cannot reach its store.
        has_other_brokers = len(self._session.endpoints.all) > 1
        if refused.reason == types.ERROR_REASON_DRAINING:
            self._session.failover.start_failover(0.0)
        elif refused.reason == types.ERROR_REASON_STORE_UNAVAILABLE and has_other_brokers:
            self._session.failover.start_failover(jittered(_STORE_FAILOVER_DELAY))

    def expire_pending(self, now: float) -> None:
        """Fails acquires that have no response ``_RETRY_WINDOW`` seconds after the end of their wait."""
        overdue = [
            (key, pending)
            for key, pending in self.all.items()
            if pending.receiver is not None and now >= pending.deadline + _RETRY_WINDOW
        ]
        for request_id, pending in overdue:
            failover = self._session.failover
            reason = failover.unavailable_reason() if self._session.connection is None else "the broker does not answer"
            pending.complete(pending.last_rejection or Unavailable(reason))
            self.cancel(request_id)

    def fail_all_unauthenticated(self, reason: str) -> None:
        """Fails all pending acquires because no broker accepts the credential, instead of repeating them."""
        rejected, self.all = self.all, {}
        for pending in rejected.values():
            pending.complete(Unauthenticated(reason))

    def on_stream_lost(self) -> None:
        """Marks all pending acquires as not sent, because their stream has ended.

        Acquires whose caller no longer waits are removed: the broker cancels attempts that are not repeated.
        """
        self.all = {key: pending for key, pending in self.all.items() if pending.receiver is not None}
        for pending in self.all.values():
            pending.call_id = 0

    def resume_all(self) -> None:
        """Sends all pending acquires on a new stream."""
        for request_id in list(self.all):
            self.send(request_id)
