"""The session of one lease stream, which keeps leases and pending acquires alive across brokers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Callable

from leasehold._core import clock, convert
from leasehold._core.command import AcquireCommand, AcquireScope, ReleaseCallback
from leasehold._core.failover import Failover
from leasehold._core.leases import Leases
from leasehold._core.pending_acquires import PendingAcquires
from leasehold._core.pending_releases import PendingReleases
from leasehold._core.stream_connection import CallKind, CallSubject, StreamConnection
from leasehold.errors import Closed, Loss, LostReason
from leasehold.v1 import lock_service_pb2 as pb

if TYPE_CHECKING:
    from leasehold._core.runtime import ClientRuntime

log = logging.getLogger("leasehold")


class Session:
    """The leases, pending acquires and releases of one lease stream, which the session reopens when it breaks.

    Any thread may call ``acquire``, ``cancel`` and ``release``. All other methods run on the client's thread.
    """

    def __init__(self, runtime: ClientRuntime) -> None:
        self.runtime = runtime
        self.endpoints = runtime.endpoints
        self.connection: StreamConnection | None = None
        self.failover = Failover(self)
        self.pending_acquires = PendingAcquires(self)
        self.leases = Leases(self)
        self.pending_releases = PendingReleases(self)
        # Rejected calls to repeat, and the times at which to repeat them.
        self._retries: list[tuple[float, CallSubject]] = []
        self._close_callback: Callable[[], None] | None = None
        self._close_deadline = 0.0
        self._connection_close_deadline = 0.0
        self._is_connection_closed = False
        self._is_closed = False
        self.failover.start_failover(0.0)

    def acquire(self, command: AcquireCommand) -> None:
        """Acquires locks and keeps their lease."""
        self.runtime.worker.post(self.pending_acquires.add, command)

    def cancel(self, request_id: str) -> None:
        """Cancels an acquire whose caller no longer waits. A granted lock is released."""
        self.runtime.worker.post(self.pending_acquires.cancel, request_id)

    def release(self, lease_id: str, scope: AcquireScope, callback: ReleaseCallback | None) -> None:
        """Releases the locks of one acquire."""
        self.runtime.worker.post(self.pending_releases.release, lease_id, scope, callback)

    @property
    def is_closed(self) -> bool:
        """True if the session is closed and accepts no new acquires."""
        return self._is_closed

    def load(self) -> int:
        """Returns the number of leases and pending acquires."""
        return len(self.pending_acquires.all) + len(self.leases.all)

    def is_idle(self) -> bool:
        """Returns true if no deadline is pending."""
        return not self.load() and self.failover.is_idle() and self._close_callback is None

    def schedule_retry(self, delay: float, subject: CallSubject) -> None:
        """Schedules a call to be sent again after ``delay`` seconds."""
        self._retries.append((clock.now() + delay, subject))

    def clear_retries(self) -> None:
        """Drops the scheduled retries, which were for another stream."""
        self._retries.clear()

    def post_result(self, function: Callable[..., None], *args: Any) -> Callable[[Any], None]:
        """Returns a callback for other threads that posts its result to the client's thread."""
        return lambda result: self.runtime.worker.post(function, *args, result)

    def on_message(self, connection: StreamConnection, response: pb.HoldResponse) -> None:
        """Handles a message of the broker."""
        if connection is not self.connection:
            return
        connection.record_message()
        kind = response.WhichOneof("message")
        if kind == "ack":
            self.leases.on_heartbeat_ack(response.ack)
        elif kind == "granted":
            self.pending_acquires.on_granted(response.granted)
        elif kind == "released":
            self._on_released(response.released)
        elif kind == "queued":
            self.pending_acquires.on_queued(response.queued)
        elif kind == "refused":
            self._on_refused(response.refused)
        elif kind == "attached":
            self.leases.on_attached(response.attached)
        elif kind == "ended":
            self.leases.on_lost(response.ended.lease_id, convert.loss_from_ended(response.ended))
        elif kind == "reconnect":
            self.failover.start_failover(convert.to_seconds(response.reconnect.delay))
        elif kind == "done":
            completed = connection.complete(response.done.call_id)
            if completed is not None and completed[0].kind is CallKind.CREDENTIAL:
                connection.on_credential_result(True)
        elif kind == "release_requested":
            request = response.release_requested
            log.info("the broker requests the release of lease %s: %s", request.lease_id, request.message)
        # Other messages come from a newer broker, and are ignored.

    def _on_released(self, released: pb.Released) -> None:
        completed = self.connection.complete(released.call_id) if self.connection else None
        if completed is None or completed[0].kind is not CallKind.RELEASE:
            return
        _, lease_id, partial_number = completed[0]
        if partial_number is None:
            self.pending_releases.on_released(lease_id)
        else:
            self.pending_releases.on_partial_release(lease_id, partial_number, released.hold_count)

    def _on_refused(self, refused: pb.Refused) -> None:
        completed = self.connection.complete(refused.call_id) if self.connection else None
        if completed is None:
            return
        kind, key, partial_number = completed[0]
        if kind is CallKind.ACQUIRE:
            self.pending_acquires.on_refused(key, refused)
        elif kind is CallKind.ATTACH:
            self.leases.on_attach_refused(key, refused)
        elif kind is CallKind.RELEASE and partial_number is None:
            self.pending_releases.on_refused(key, refused)
        elif kind is CallKind.RELEASE and partial_number is not None:
            self.pending_releases.on_partial_refused(key, partial_number, refused)
        elif kind is CallKind.CREDENTIAL and self.connection is not None:
            # The refresh is repeated, because the broker may not have loaded the new key or token yet.
            log.warning("a broker rejected the new credential: %s", refused.message)
            self.connection.on_credential_result(False)

    def on_tick(self, now: float) -> None:
        """Handles all deadlines that have passed."""
        if self._close_callback is not None:
            self.close_connection()
            if now >= self._close_deadline:
                self._finish_close()
            return
        self.leases.check_deadlines(now)
        self.pending_acquires.expire_pending(now)
        self.leases.check_silence(now)
        self.leases.heartbeat_if_due(now)
        if self.connection is not None:
            self.connection.refresh_credential(now)
        self._send_retries(now)
        self.failover.on_tick(now)

    def _send_retries(self, now: float) -> None:
        if self.connection is None:
            return
        ready = [subject for retry_at, subject in self._retries if retry_at <= now]
        self._retries = [(retry_at, subject) for retry_at, subject in self._retries if retry_at > now]
        for kind, key, partial_number in ready:
            if kind is CallKind.ACQUIRE:
                self.pending_acquires.send(key)
            elif kind is CallKind.ATTACH:
                self.leases.attach(key)
            elif kind is CallKind.RELEASE and partial_number is None:
                self.pending_releases.send(key)
            elif kind is CallKind.RELEASE and partial_number is not None:
                self.pending_releases.send_partial(key, partial_number)

    def close(self, deadline: float, callback: Callable[[], None]) -> None:
        """Cancels all pending acquires, releases all leases, and ends at ``deadline`` at the latest."""
        self._is_closed = True
        self.pending_releases.release_all_lost()
        for pending in list(self.pending_acquires.all.values()):
            pending.complete(Closed())
        self.pending_acquires.all.clear()
        for lease_id in list(self.leases.all):
            self.leases.close(lease_id, Loss(LostReason.CLOSED))
        self.failover.stop()
        self._close_callback, self._close_deadline = callback, deadline
        self._connection_close_deadline = (clock.now() + deadline) / 2
        if self.connection is None:
            return self._finish_close()
        self.close_connection()

    def close_connection(self) -> None:
        """Closes the stream of a session that is closing.

        The stream is closed once no unary release is in flight, or after half of the shutdown time.
        """
        may_close = self.pending_releases.unary_count == 0 or clock.now() >= self._connection_close_deadline
        if (
            self._close_callback is not None
            and self.connection is not None
            and not self._is_connection_closed
            and may_close
        ):
            self._is_connection_closed = True
            self.connection.close()

    def on_disconnect(self, connection: StreamConnection) -> None:
        """Handles the end of a stream."""
        if connection is not self.connection:
            return
        self.connection = None
        if self._close_callback is not None:
            return self._finish_close(is_stream_closed=True)
        log.debug("the lease stream ended")
        self._on_stream_lost()
        self.failover.on_disconnect()

    def switch_connection(self, connection: StreamConnection) -> None:
        """Moves all leases and pending acquires to a new stream.

        The old stream is dropped, because the new one repeats what the old one would still report.
        """
        previous, self.connection = self.connection, connection
        if previous is not None:
            previous.cancel()
        self._on_stream_lost()
        self.leases.resume_all()
        self.pending_acquires.resume_all()

    def _on_stream_lost(self) -> None:
        self.clear_retries()
        self.pending_acquires.on_stream_lost()
        self.leases.on_stream_lost()

    def _finish_close(self, is_stream_closed: bool = False) -> None:
        callback, self._close_callback = self._close_callback, None
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.cancel()
        self.pending_releases.on_session_closed(is_stream_closed)
        if callback is not None:
            callback()
