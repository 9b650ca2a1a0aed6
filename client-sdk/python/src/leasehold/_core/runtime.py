"""The runtime of a client: its thread, its sessions, and their shutdown."""

from __future__ import annotations

import atexit
import threading
import weakref
from typing import Any, Callable, Optional, Union

import grpc

from leasehold._core import clock, convert, process
from leasehold._core.command import AcquireCommand, LockState, PermitUsage
from leasehold._core.endpoint import Endpoints
from leasehold._core.session import Session
from leasehold._core.stream_connection import StreamConnection
from leasehold._core.worker import Worker
from leasehold.errors import Closed, ConnectError, Error, Unavailable, Unreachable
from leasehold.target import INT32_MAX, LockName
from leasehold.v1 import inspection_service_pb2 as inspection
from leasehold.v1 import lock_service_pb2 as pb
from leasehold.v1 import types_pb2 as types

#: Maximum number of leases and pending acquires on one stream, as the broker allows.
_STREAM_LEASES_MAX = 1_000
#: Time for which a shutdown waits for responses of brokers, in seconds.
SHUTDOWN_TIMEOUT = 2.0

LockStateCallback = Callable[[Union[Optional[LockState], Error]], None]
LimitCallback = Callable[[Union[Optional[int], Error]], None]
#: Sends a unary call, whose completion is passed to the callback in another thread.
UnaryCall = Callable[[StreamConnection, Callable[[Any], None]], None]


class RuntimeReference:
    """A reference that the client and its leases share. The runtime is closed when the last of them is dropped."""

    def __init__(self, runtime: ClientRuntime) -> None:
        self._runtime = runtime

    def __del__(self) -> None:
        self._runtime.close(lambda: None)


class ClientRuntime:
    """The runtime of a client.

    Methods whose names begin with an underscore run on the client's thread.
    """

    def __init__(self, endpoints: Endpoints, release_at_exit: bool) -> None:
        self.endpoints = endpoints
        self.worker = Worker("leasehold", self._on_tick, self._is_idle)
        self._sessions: list[Session] = []
        self._is_closed = False
        # Number of sessions that are still closing, and the callbacks that wait for them.
        self._closing_count = 0
        self._close_callbacks: list[Callable[[], None]] = []
        self._reference: weakref.ref[RuntimeReference] | None = None
        if release_at_exit:
            _register_at_exit(self)

    def reference(self) -> RuntimeReference:
        """Returns a reference that keeps the runtime alive."""
        reference = self._reference() if self._reference is not None else None
        if reference is None:
            reference = RuntimeReference(self)
            self._reference = weakref.ref(reference)
        return reference

    def connect(self, callback: Callable[[ConnectError | None], None]) -> None:
        """Calls the callback with None once a broker responds, or with the reason for which none does."""
        self.worker.check()
        self.worker.post(self._connect, callback)

    def _connect(self, callback: Callable[[ConnectError | None], None]) -> None:
        if self._is_closed:
            return callback(Unreachable(f"no broker answers: {Closed()}"))
        self._session_with_capacity(0).failover.notify_when_connected(callback)

    def acquire(self, command: AcquireCommand) -> None:
        """Acquires locks and keeps their lease."""
        self.worker.check()
        self.worker.post(self._acquire, command)

    def _acquire(self, command: AcquireCommand) -> None:
        if self._is_closed:
            return command.receiver.on_result(Closed())
        self._session_with_capacity(1).pending_acquires.add(command)

    def cancel(self, request_id: str) -> None:
        """Cancels an acquire whose caller no longer waits. A granted lock is released."""
        self.worker.post(self._cancel, request_id)

    def _cancel(self, request_id: str) -> None:
        for session in self._sessions:
            session.pending_acquires.cancel(request_id)

    def get_lock_state(self, lock: LockName, callback: LockStateCallback) -> None:
        """Reads the state of a lock and passes it to the callback.

        The callback receives None if the lock has no state, or an error.
        """
        request = inspection.GetLockRequest(namespace=lock.namespace, name=lock.name)
        self._call_unary(lambda connection, done: connection.get_lock(request, done), _lock_state_of, callback)

    def set_limit(self, lock: LockName, limit: int | None, callback: LimitCallback) -> None:
        """Sets the limit of a lock, or removes it if ``limit`` is None, and passes the previous limit to the callback.

        The callback receives None if there was no limit, or an error.
        """
        # Larger numbers do not fit into the field. The broker rejects the bounded number as too large.
        request = pb.SetLockLimitRequest(lock=lock.proto(), limit=min(limit or 0, INT32_MAX))
        self._call_unary(lambda connection, done: connection.set_lock_limit(request, done), _limit_of, callback)

    def _call_unary(self, send: UnaryCall, to_result: Callable[[Any], Any], callback: Callable[[Any], None]) -> None:
        self.worker.check()
        self.worker.post(self._call_when_connected, send, to_result, callback)

    def _call_when_connected(
        self, send: UnaryCall, to_result: Callable[[Any], Any], callback: Callable[[Any], None]
    ) -> None:
        if self._is_closed:
            return callback(Closed())
        session = self._session_with_capacity(0)

        def connected(_: ConnectError | None) -> None:
            if session.connection is None:
                return callback(Closed() if self._is_closed else Unavailable(session.failover.unavailable_reason()))
            try:
                send(session.connection, lambda call: callback(to_result(call)))
            except ValueError:
                # The channel was closed in the meantime.
                callback(Unavailable("the lease stream ended before the response"))

        session.failover.notify_when_connected(connected)

    def close(self, callback: Callable[[], None], timeout: float = SHUTDOWN_TIMEOUT) -> None:
        """Cancels every wait, releases every lease, and closes the runtime. Calls the callback at the end."""
        if not self.worker.is_started:
            self._is_closed = True
            return callback()
        self.worker.post(self._close, callback, clock.now() + timeout)

    def _close(self, callback: Callable[[], None], deadline: float) -> None:
        self._close_callbacks.append(callback)
        if self._is_closed:
            # A shutdown may be in progress: the last lease may be dropped just before the process ends.
            return self._finish_close()
        # A later call must not create another session, because it would never be closed.
        self._is_closed = True
        self._closing_count = len(self._sessions)
        for session in list(self._sessions):
            session.close(deadline, self._on_session_closed)
        self._finish_close()

    def _on_session_closed(self) -> None:
        self._closing_count -= 1
        self._finish_close()

    def _finish_close(self) -> None:
        if self._closing_count > 0:
            return
        self.worker.stop()
        callbacks, self._close_callbacks = self._close_callbacks, []
        for callback in callbacks:
            callback()

    def _session_with_capacity(self, count: int) -> Session:
        """Returns a session with capacity for ``count`` leases or pending acquires. Creates one if all are full."""
        for session in self._sessions:
            if session.load() + count <= _STREAM_LEASES_MAX:
                return session
        session = Session(self)
        self._sessions.append(session)
        return session

    def _on_tick(self, now: float) -> None:
        for session in self._sessions:
            session.on_tick(now)

    def _is_idle(self) -> bool:
        return all(session.is_idle() for session in self._sessions)


def _error_of(call: Any) -> Error | None:
    """Returns the error of a completed unary call, or None if the call succeeded."""
    if call.cancelled():
        return Unavailable("the lease stream ended before the response")
    error = call.exception()
    if not isinstance(error, grpc.RpcError):
        return None
    refused = convert.refused_from_status(error)
    if refused.reason == types.ERROR_REASON_UNSPECIFIED and convert.is_retryable(refused):
        # No broker sent this status: the connection was lost, or the call timed out.
        return Unavailable(refused.message)
    return convert.error_from_refused(refused)


def _lock_state_of(call: Any) -> LockState | Error | None:
    if call.code() is grpc.StatusCode.NOT_FOUND:
        return None
    error = _error_of(call)
    if error is not None:
        return error
    lock = call.result().lock
    holders = [convert.to_holder(holder) for holder in lock.holders]
    usage = lock.permit_usage
    permit_usage = PermitUsage(usage.limit, usage.used, usage.is_limit_set) if lock.HasField("permit_usage") else None
    return LockState(holders, lock.queue_length, lock.last_fencing_token, convert.closure_of(lock), permit_usage)


def _limit_of(call: Any) -> int | Error | None:
    error = _error_of(call)
    return error if error is not None else call.result().previous_limit or None


_released_at_exit: weakref.WeakSet[ClientRuntime] = weakref.WeakSet()
_is_exit_hook_registered = False


def _register_at_exit(runtime: ClientRuntime) -> None:
    global _is_exit_hook_registered
    if not _is_exit_hook_registered:
        _is_exit_hook_registered = True
        atexit.register(_release_all_at_exit)
    _released_at_exit.add(runtime)


def _release_all_at_exit() -> None:
    """Releases all leases at the end of the process, so that the next waiter need not wait for the expiry."""
    generation = process.generation()
    closed_events = []
    for runtime in list(_released_at_exit):
        if runtime.worker.belongs_to(generation):
            closed = threading.Event()
            closed_events.append(closed)
            runtime.close(closed.set)
    deadline = clock.now() + SHUTDOWN_TIMEOUT
    for closed in closed_events:
        closed.wait(max(0.0, deadline - clock.now()))
