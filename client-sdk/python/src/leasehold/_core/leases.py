"""Leases of one lease stream: adoption, renewal, attachment and loss."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from leasehold._core import clock, convert
from leasehold._core.command import AcquireParams, AcquireScope
from leasehold._core.failover import jittered
from leasehold._core.lease_handle import LeaseHandle
from leasehold._core.pending_acquires import PendingAcquire
from leasehold._core.pending_releases import PartialRelease, PendingRelease
from leasehold._core.stream_connection import CallKind, CallSubject
from leasehold._core.validity import LeaseValidity
from leasehold.errors import Closed, LeaseLost, Loss, LostReason, Unavailable
from leasehold.target import LockName, lock_of
from leasehold.v1 import lock_service_pb2 as pb
from leasehold.v1 import types_pb2 as types

if TYPE_CHECKING:
    from leasehold._core.session import Session

log = logging.getLogger("leasehold")

_RETRY_DELAY = 0.1
_GRANTED_TOO_LATE = "the grant arrived after the validity of its lease had ended"


class HeldLease:
    """A lease that is attached to the stream, or waits to be attached to the next one."""

    def __init__(self, lease: types.Lease, pending: PendingAcquire, sent_at: float) -> None:
        self.lease = lease
        self.ttl = convert.to_seconds(lease.ttl)
        self.valid_until = sent_at + self.ttl
        self.attach_number = pending.attach_number
        self.is_attached = True
        self.granted_at = clock.now()
        #: Time at which the lease was attached to this stream, if it was granted on another one.
        self.attached_at: float | None = None
        #: Validity that the handles of the lease share; None until the lease is delivered.
        self.validity: LeaseValidity | None = None
        #: Acquire that the lease was granted to, until enough validity is confirmed to deliver the lease.
        self.undelivered: PendingAcquire | None = pending
        #: Number of handles that have not been released.
        self.handle_count = 1
        self.pending_release: PendingRelease | None = None
        self.partial_releases: dict[int, PartialRelease] = {}
        self._requested_interval = convert.to_seconds(lease.heartbeat_interval) or self.ttl / 3

    @property
    def heartbeat_interval(self) -> float:
        """Interval at which the lease needs heartbeats, in seconds."""
        return min(self._requested_interval, self.ttl / 3)

    def needs_heartbeat(self, now: float) -> bool:
        """Returns true if the validity counts from a time at least one interval ago, so that a heartbeat is needed."""
        return now >= self.valid_until - self.ttl + self.heartbeat_interval

    def has_reached_deadline(self, now: float) -> bool:
        """Returns true if the deadline of the lease has passed: of its release, of its delivery, or of its validity."""
        if self.pending_release is not None:
            return now >= self.pending_release.ended_at
        if self.validity is None:
            return now > self.granted_at + self.ttl
        return not self.validity.is_valid()

    def merge_grants(self, granted: types.Lease, params: AcquireParams) -> None:
        """Merges the grants of the call's own locks; the response may omit grants added by other calls."""
        requested = params.locks()
        others = [grant for grant in self.lease.grants if lock_of(grant.target) not in requested]
        updated = [grant for grant in granted.grants if lock_of(grant.target) in requested]
        del granted.grants[:]
        granted.grants.extend(others + updated)
        self.lease = granted

    def remove_grant(self, lock: LockName) -> None:
        """Removes the grant of a lock."""
        remaining = [grant for grant in self.lease.grants if lock_of(grant.target) != lock]
        del self.lease.grants[:]
        self.lease.grants.extend(remaining)

    def end_validity(self, loss: Loss) -> None:
        """Ends the validity of the lease, or fails the acquire that it was not delivered to."""
        if self.validity is not None:
            self.validity.end(loss)
        if self.undelivered is not None:
            self.undelivered.complete(LeaseLost(loss))


class Leases:
    """The leases of one session, by their ids."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.all: dict[str, HeldLease] = {}
        #: Lost leases whose handles are not released yet, while the store may still have the leases.
        self.lost: dict[str, HeldLease] = {}

    def adopt(self, lease: types.Lease, pending: PendingAcquire, sent_at: float) -> None:
        """Adds the lease that was granted to a call, with its validity counted from ``sent_at``."""
        self.all[lease.lease_id] = HeldLease(lease, pending, sent_at)
        self._deliver(lease.lease_id)

    def add_locks(self, lease: types.Lease, pending: PendingAcquire) -> LeaseHandle | None:
        """Returns the handle of a call under a lease, or None if the lease has ended."""
        held_lease = self.all.get(lease.lease_id)
        if held_lease is None or held_lease.validity is None:
            # The call has attached the lease to this stream, where it must not be renewed.
            self._detach(lease.lease_id)
            return None
        held_lease.handle_count += 1
        held_lease.merge_grants(lease, pending.params)
        return self._create_handle(held_lease, held_lease.validity, pending.params)

    def cancel_undelivered(self, request_id: str) -> None:
        """Releases an undelivered lease whose caller no longer waits."""
        for lease_id, held_lease in list(self.all.items()):
            if held_lease.undelivered is not None and held_lease.undelivered.params.request_id == request_id:
                held_lease.undelivered = None
                scope = AcquireScope(request_id)
                self._session.pending_releases.release(lease_id, scope, None)

    def _create_handle(self, held_lease: HeldLease, validity: LeaseValidity, params: AcquireParams) -> LeaseHandle:
        requested = params.locks()
        grants = [(lock_of(grant.target), grant.fencing_token) for grant in held_lease.lease.grants]
        tokens = [(lock, token) for lock, token in grants if lock in requested]
        reference = self._session.runtime.reference()
        return LeaseHandle(held_lease.lease.lease_id, tokens, params.request_id, validity, self._session, reference)

    def _deliver(self, lease_id: str) -> None:
        # Delivers a new lease to its caller if half of its validity is left. Otherwise the confirmation of the next
        # heartbeat delivers the lease. That heartbeat is sent early.
        held_lease = self.all[lease_id]
        if clock.now() + held_lease.ttl / 2 > held_lease.valid_until:
            return
        pending, held_lease.undelivered = held_lease.undelivered, None
        if pending is not None:
            held_lease.validity = LeaseValidity(held_lease.valid_until, held_lease.ttl)
            pending.complete(self._create_handle(held_lease, held_lease.validity, pending.params))

    def on_heartbeat_ack(self, ack: pb.HeartbeatAck) -> None:
        """Handles the acknowledgement of a heartbeat, which lists the leases that the store has renewed."""
        sent_at = self._session.connection.heartbeat_sent_at(ack.sequence) if self._session.connection else None
        if sent_at is None:
            return
        for extended in ack.leases:
            self._on_extended(sent_at, extended)

    def _on_extended(self, sent_at: float, extended: pb.LeaseExtended) -> None:
        held_lease = self.all.get(extended.lease_id)
        if held_lease is None or extended.grant_count != len(held_lease.lease.grants):
            return
        held_lease.ttl = convert.to_seconds(extended.ttl)
        valid_until = sent_at + held_lease.ttl
        held_lease.valid_until = max(held_lease.valid_until, valid_until)
        if held_lease.undelivered is not None:
            self._deliver(extended.lease_id)
            return
        validity = held_lease.validity if held_lease.pending_release is None else None
        if validity is not None and not validity.extend(valid_until, held_lease.ttl):
            self._expire(extended.lease_id)

    def _expire(self, lease_id: str) -> None:
        # Stops renewing a lease whose validity has passed. The lock is released only after the guarded work has
        # stopped; see _keep_lost_lease.
        held_lease = self.all.pop(lease_id, None)
        if held_lease is None:
            return
        log.warning("lock lost: no renewal of lease %s was confirmed in time", lease_id)
        if held_lease.is_attached:
            self._detach(lease_id)
        held_lease.end_validity(Loss(LostReason.EXPIRED))
        self._fail_partial_releases(held_lease)
        self._session.pending_acquires.send_under(lease_id)
        self._keep_lost_lease(lease_id, held_lease)

    def _detach(self, lease_id: str) -> None:
        connection = self._session.connection
        if connection is not None:
            call_id = connection.next_call_id()
            detach = pb.DetachLease(call_id=call_id, lease_id=lease_id)
            connection.send_call(CallSubject(CallKind.DETACH), pb.HoldRequest(detach=detach), call_id)

    def attach(self, lease_id: str) -> None:
        """Sends the attachment of a lease to this stream, or the pending release of the lease."""
        connection, held_lease = self._session.connection, self.all.get(lease_id)
        if connection is None or held_lease is None:
            return
        if held_lease.pending_release is not None:
            return self._session.pending_releases.send(lease_id)
        if held_lease.validity is None or not held_lease.validity.is_valid():
            return self._expire(lease_id)
        held_lease.attach_number += 1
        call_id = connection.next_call_id()
        attach = pb.AttachLease(call_id=call_id, lease=held_lease.lease, attach_number=held_lease.attach_number)
        connection.send_call(CallSubject(CallKind.ATTACH, lease_id), pb.HoldRequest(attach=attach), call_id)

    def on_attached(self, attached: pb.LeaseAttached) -> None:
        """Handles the attachment of a lease to this stream."""
        if self._session.connection is not None:
            self._session.connection.complete(attached.call_id)
        held_lease = self.all.get(attached.lease_id)
        if held_lease is None:
            # The lease was lost before the response arrived.
            return self._detach(attached.lease_id)
        held_lease.is_attached, held_lease.attached_at = True, clock.now()
        if held_lease.pending_release is not None:
            return self._session.pending_releases.send(attached.lease_id)
        for number in list(held_lease.partial_releases):
            self._session.pending_releases.send_partial(attached.lease_id, number)
        self._session.pending_acquires.send_under(attached.lease_id)

    def on_attach_refused(self, lease_id: str, refused: pb.Refused) -> None:
        """Handles the rejection of an attachment, which is final or is followed by a repetition."""
        if convert.is_retryable(refused):
            return self._session.schedule_retry(jittered(_RETRY_DELAY), CallSubject(CallKind.ATTACH, lease_id))
        held_lease = self.all.get(lease_id)
        if held_lease is not None and held_lease.pending_release is not None:
            self._session.pending_releases.send(lease_id)
        elif held_lease is not None:
            self.on_lost(lease_id, convert.loss_from_refused(refused))

    def on_lost(self, lease_id: str, loss: Loss) -> None:
        """Ends a lease because the broker reports its end."""
        held_lease = self.all.pop(lease_id, None)
        if held_lease is None:
            return
        if held_lease.pending_release is not None:
            return held_lease.pending_release.complete_with_loss(loss)
        log.warning("lock lost: lease %s: %s", lease_id, loss)
        held_lease.end_validity(loss)
        self._fail_partial_releases(held_lease)
        self._session.pending_acquires.send_under(lease_id)
        if loss.reason in (LostReason.REVOKED, LostReason.MAX_HOLD):
            self._keep_lost_lease(lease_id, held_lease)

    def _keep_lost_lease(self, lease_id: str, held_lease: HeldLease) -> None:
        # Stores a lost lease until the work under it has stopped. Then its lock is released, before the lease expires
        # in the store.
        now = clock.now()
        # After the expiry in the store a release has no effect. A program may keep a lost lease without ever releasing
        # it, so expired entries are removed here to bound their number.
        expired_ids = [other_id for other_id, other in self.lost.items() if now > other.valid_until + other.ttl / 2]
        for other_id in expired_ids:
            del self.lost[other_id]
        is_held = held_lease.validity is not None
        held_lease.is_attached, held_lease.undelivered = False, None
        self.lost[lease_id] = held_lease
        if not is_held:
            self._session.pending_releases.release_lost(lease_id)

    def close(self, lease_id: str, loss: Loss) -> None:
        """Ends a lease because the client is shut down."""
        held_lease = self.all.pop(lease_id)
        if held_lease.undelivered is not None:
            held_lease.undelivered.complete(Closed())
            held_lease.undelivered = None
        held_lease.end_validity(loss)
        for partial in held_lease.partial_releases.values():
            if partial.callback is not None:
                self._session.pending_releases.shutdown_callbacks.append(partial.callback)
        if held_lease.pending_release is not None:
            self._session.pending_releases.shutdown_callbacks.extend(held_lease.pending_release.callbacks)

    def _fail_partial_releases(self, held_lease: HeldLease) -> None:
        loss = held_lease.validity.loss() if held_lease.validity is not None else None
        for partial in held_lease.partial_releases.values():
            partial.complete(LeaseLost(loss or Loss(LostReason.EXPIRED)))
        held_lease.partial_releases.clear()

    def check_deadlines(self, now: float) -> None:
        """Ends the leases whose deadline has passed."""
        expired_ids = [lease_id for lease_id, held_lease in self.all.items() if held_lease.has_reached_deadline(now)]
        for lease_id in expired_ids:
            held_lease = self.all[lease_id]
            if held_lease.pending_release is not None:
                self._session.pending_releases.fail_unconfirmed(lease_id)
            elif held_lease.validity is None:
                self._discard_undelivered(lease_id)
            else:
                self._expire(lease_id)

    def _discard_undelivered(self, lease_id: str) -> None:
        # Drops an undelivered lease whose validity no heartbeat has extended in time.
        pending = self.all.pop(lease_id).undelivered
        self._detach(lease_id)
        if pending is not None:
            pending.complete(Unavailable(_GRANTED_TOO_LATE))

    def on_stream_lost(self) -> None:
        """Marks all leases as detached, because their stream has ended."""
        for lease_id, held_lease in list(self.all.items()):
            held_lease.is_attached = False
            if held_lease.undelivered is not None:
                # The lease was not delivered, so its acquire becomes pending again.
                del self.all[lease_id]
                pending = held_lease.undelivered
                pending.call_id = 0
                self._session.pending_acquires.all[pending.params.request_id] = pending

    def resume_all(self) -> None:
        """Attaches all leases to a new stream."""
        for lease_id in list(self.all):
            self.attach(lease_id)

    def heartbeat_if_due(self, now: float) -> None:
        """Sends a heartbeat if the leases or pending acquires need one."""
        connection = self._session.connection
        if connection is None:
            return
        attached = [held_lease for held_lease in self.all.values() if held_lease.is_attached]
        intervals = [held_lease.heartbeat_interval for held_lease in attached]
        intervals += [pending.heartbeat_interval for pending in self._session.pending_acquires.all.values()]
        if not intervals:
            return
        last_heartbeat_at = connection.last_heartbeat_at()
        if last_heartbeat_at is None:
            return connection.send_heartbeat()
        # Leases that were just attached or were granted late share one early heartbeat, because their broker is busy.
        is_early = any(
            (held_lease.attached_at is not None and held_lease.attached_at > last_heartbeat_at)
            or (held_lease.granted_at > last_heartbeat_at and held_lease.needs_heartbeat(now))
            for held_lease in attached
        )
        interval = min(intervals) / 4 if is_early else min(intervals)
        if now >= last_heartbeat_at + interval:
            connection.send_heartbeat()

    def check_silence(self, now: float) -> None:
        """Starts a failover if the broker has answered no heartbeat for a quarter of a TTL.

        The broker may have failed although its connection seems to be open.
        """
        unanswered_since = self._session.connection.unanswered_since() if self._session.connection else None
        silence_timeouts = [held_lease.ttl / 4 for held_lease in self.all.values() if held_lease.is_attached]
        if unanswered_since is None or not silence_timeouts or not self._session.failover.is_idle():
            return
        if now > unanswered_since + min(silence_timeouts):
            self._session.failover.start_failover(0.0)
