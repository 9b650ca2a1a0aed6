"""Releases: of the whole lease with its last handle, and of the locks of earlier handles one by one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import grpc

from leasehold._core import clock, convert
from leasehold._core.command import AcquireScope, ReleaseCallback
from leasehold._core.failover import jittered
from leasehold._core.stream_connection import CallKind, CallSubject
from leasehold.errors import Error, LeaseLost, Loss, LostReason, Refused, Unconfirmed
from leasehold.v1 import lock_service_pb2 as pb

if TYPE_CHECKING:
    from leasehold._core.leases import HeldLease
    from leasehold._core.session import Session

log = logging.getLogger("leasehold")

_RETRY_DELAY = 0.1


class PendingRelease:
    """The release of a whole lease."""

    def __init__(self, callbacks: list[ReleaseCallback], ended_at: float) -> None:
        self.callbacks = callbacks
        #: Time at which the lease has expired in the store, even if no release arrived.
        self.ended_at = ended_at

    def complete(self, result: Error | None) -> None:
        """Calls the callbacks that wait for the release."""
        for callback in self.callbacks:
            callback(result)

    def complete_with_loss(self, loss: Loss) -> None:
        """Completes the release because the broker reports that the lease has ended.

        The release was sent within the validity of the lease. RELEASED and STORE_LOST therefore mean that this release
        or an earlier attempt of it succeeded.
        """
        is_released = loss.reason in (LostReason.RELEASED, LostReason.STORE_LOST)
        self.complete(None if is_released else LeaseLost(loss))


class PartialRelease:
    """The release of the locks of one handle of several, lock by lock."""

    def __init__(self, scope: AcquireScope, callback: ReleaseCallback | None) -> None:
        self.scope = scope
        self.callback = callback

    def complete(self, result: Error | None) -> None:
        """Calls the callback that waits for the release."""
        if self.callback is not None:
            self.callback(result)


class PendingReleases:
    """The releases of the leases of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._last_partial_number = 0
        #: Callbacks that wait for a release while the client is shut down.
        self.shutdown_callbacks: list[ReleaseCallback] = []
        #: Number of unary releases in flight.
        self.unary_count = 0

    def release(self, lease_id: str, scope: AcquireScope, callback: ReleaseCallback | None) -> None:
        """Releases what one handle holds. The last handle releases the whole lease."""
        held_lease = self._session.leases.all.get(lease_id)
        if held_lease is None:
            # A missing lease was lost before. The caller reads the reason from the validity.
            if callback is not None:
                callback(LeaseLost(Loss(LostReason.CLOSED)))
            return self.release_lost(lease_id)
        held_lease.handle_count -= 1
        callbacks = [] if callback is None else [callback]
        if held_lease.pending_release is not None:
            # A call under the lease was granted while the whole lease was being released.
            held_lease.pending_release.callbacks.extend(callbacks)
            return
        if held_lease.handle_count > 0:
            self._last_partial_number += 1
            held_lease.partial_releases[self._last_partial_number] = PartialRelease(scope, callback)
            return self.send_partial(lease_id, self._last_partial_number)
        if held_lease.validity is not None:
            held_lease.validity.end(Loss(LostReason.RELEASED))
        partial_callbacks = [
            partial.callback for partial in held_lease.partial_releases.values() if partial.callback is not None
        ]
        held_lease.partial_releases.clear()
        ended_at = max(clock.now(), held_lease.valid_until) + held_lease.ttl / 2
        held_lease.pending_release = PendingRelease(partial_callbacks + callbacks, ended_at)
        self.send(lease_id)

    def release_lost(self, lease_id: str) -> None:
        """Drops one handle of a lost lease.

        After the last one, releases the lease at the broker so that the next waiter need not wait for its expiry.
        """
        leases = self._session.leases
        held_lease = leases.lost.get(lease_id)
        if held_lease is None:
            return
        held_lease.handle_count -= 1
        if held_lease.handle_count > 0:
            return
        held_lease.pending_release = PendingRelease([], max(clock.now(), held_lease.valid_until) + held_lease.ttl / 2)
        leases.all[lease_id] = leases.lost.pop(lease_id)
        self.send(lease_id)

    def release_all_lost(self) -> None:
        """Releases all lost leases when the client is shut down, because the work under them has ended."""
        for lease_id, held_lease in list(self._session.leases.lost.items()):
            held_lease.handle_count = 1
            self.release_lost(lease_id)

    def send(self, lease_id: str) -> None:
        """Sends a release: on the stream, or as a unary call for a lease that is not attached to the stream."""
        connection, held_lease = self._session.connection, self._session.leases.all.get(lease_id)
        if connection is None or held_lease is None:
            return
        if held_lease.is_attached:
            call_id = connection.next_call_id()
            release = pb.HoldRelease(call_id=call_id, lease_id=lease_id)
            return connection.send_call(
                CallSubject(CallKind.RELEASE, lease_id), pb.HoldRequest(release=release), call_id
            )
        on_result = self._session.post_result(self._on_unary_done, lease_id)
        try:
            connection.release(pb.ReleaseRequest(lease=held_lease.lease), on_result)
            self.unary_count += 1
        except ValueError:
            # The channel was closed in the meantime. The release is sent again with the next stream.
            log.debug("the lease stream ended before a release was sent")

    def _on_unary_done(self, lease_id: str, call: Any) -> None:
        self.unary_count -= 1
        self._complete_unary(lease_id, call)
        self._session.close_connection()

    def _complete_unary(self, lease_id: str, call: Any) -> None:
        error = call.exception() if not call.cancelled() else None
        if isinstance(error, grpc.RpcError):
            return self.on_refused(lease_id, convert.refused_from_status(error))
        if call.cancelled():
            # The connection was closed during the call.
            return self.on_refused(lease_id, pb.Refused(code=grpc.StatusCode.CANCELLED.value[0]))
        self.on_released(lease_id)

    def on_released(self, lease_id: str) -> None:
        """Handles the confirmation of a release."""
        held_lease = self._session.leases.all.get(lease_id)
        if held_lease is not None and held_lease.pending_release is not None:
            del self._session.leases.all[lease_id]
            held_lease.pending_release.complete(None)

    def on_refused(self, lease_id: str, refused: pb.Refused) -> None:
        """Handles the rejection of a release, which is final or is followed by a repetition."""
        if convert.is_retryable(refused):
            return self._session.schedule_retry(jittered(_RETRY_DELAY), CallSubject(CallKind.RELEASE, lease_id))
        held_lease = self._session.leases.all.get(lease_id)
        if held_lease is None or held_lease.pending_release is None:
            return
        del self._session.leases.all[lease_id]
        error = convert.error_from_refused(refused)
        if isinstance(error, LeaseLost):
            return held_lease.pending_release.complete_with_loss(error.loss)
        held_lease.pending_release.complete(Refused(refused.message))

    def fail_unconfirmed(self, lease_id: str) -> None:
        """Fails a release that no broker confirmed while the lease could live."""
        release = self._session.leases.all.pop(lease_id).pending_release
        if release is not None:
            release.complete(Unconfirmed())

    def send_partial(self, lease_id: str, number: int) -> None:
        """Sends the release of the next lock of a partial release.

        Brokers reject the release on another stream than the one that the lease is attached to.
        """
        connection, held_lease = self._session.connection, self._session.leases.all.get(lease_id)
        partial = held_lease.partial_releases.get(number) if held_lease is not None else None
        if connection is None or held_lease is None or partial is None or not held_lease.is_attached:
            return
        call_id = connection.next_call_id()
        release = pb.HoldRelease(
            call_id=call_id,
            lease_id=lease_id,
            lock=partial.scope.locks[-1].proto(),
            request_id=partial.scope.request_id,
        )
        connection.send_call(CallSubject(CallKind.RELEASE, lease_id, number), pb.HoldRequest(release=release), call_id)

    def on_partial_release(self, lease_id: str, number: int, hold_count: int) -> None:
        """Handles the release of one lock of a partial release; ``hold_count`` entries of the lock remain."""
        held_lease = self._session.leases.all.get(lease_id)
        partial = held_lease.partial_releases.get(number) if held_lease is not None else None
        if held_lease is None or partial is None:
            return
        lock = partial.scope.locks.pop()
        if hold_count == 0:
            held_lease.remove_grant(lock)
        if partial.scope.locks:
            return self.send_partial(lease_id, number)
        self._complete_partial(held_lease, number, None)

    def on_partial_refused(self, lease_id: str, number: int, refused: pb.Refused) -> None:
        """Handles the rejection of a partial release, which is final or is followed by a repetition."""
        if convert.is_retryable(refused):
            return self._session.schedule_retry(jittered(_RETRY_DELAY), CallSubject(CallKind.RELEASE, lease_id, number))
        held_lease = self._session.leases.all.get(lease_id)
        if held_lease is not None:
            self._complete_partial(held_lease, number, Refused(refused.message))

    def _complete_partial(self, held_lease: HeldLease, number: int, result: Error | None) -> None:
        partial = held_lease.partial_releases.pop(number, None)
        if partial is not None:
            partial.complete(result)

    def on_session_closed(self, is_stream_closed: bool) -> None:
        """Completes the releases of a shutdown: with success if the stream was closed with its leases."""
        callbacks, self.shutdown_callbacks = self.shutdown_callbacks, []
        for callback in callbacks:
            callback(None if is_stream_closed else Unconfirmed())
