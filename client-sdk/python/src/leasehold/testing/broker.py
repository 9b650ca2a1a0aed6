"""The fake broker and the backend of its clients."""

from __future__ import annotations

import queue
from typing import Any, Callable

from leasehold import aio
from leasehold._core.command import AcquireCommand, AcquireScope, LockState, ReleaseCallback
from leasehold._core.lease_handle import LeaseHandle
from leasehold._core.worker import Worker
from leasehold.client import Client
from leasehold.errors import AcquireError, ConnectError, Error, Loss, LostReason
from leasehold.target import LockName, TargetLike, target
from leasehold.testing.locks import Locks


class FakeBroker:
    """A broker in memory whose locks are all free."""

    def __init__(self) -> None:
        self._thread = _BrokerThread()

    def client(self, owner: str = "test") -> Client:
        """Creates a client of this broker, for threads."""
        return Client.of(FakeBackend(self._thread), owner)

    def aio_client(self, owner: str = "test") -> aio.Client:
        """Creates a client of this broker, for asyncio."""
        return aio.Client.of(FakeBackend(self._thread), owner)

    def lose(self, lock: TargetLike, reason: LostReason = LostReason.STORE_LOST, message: str = "") -> int:
        """Ends all leases that hold a lock, with all their locks. Returns the number of these leases.

        The lock is granted to the next waiter at once.
        """
        loss = Loss(reason, message)
        return int(self._thread.call(self._thread.locks.lose, target(lock).lock, loss))

    def refuse(self, lock: TargetLike, error: AcquireError) -> None:
        """Fails the next acquire of this lock with ``error``."""
        self._thread.call(self._thread.locks.reject_next, target(lock).lock, error)

    def holder_count(self, lock: TargetLike) -> int:
        """Returns the number of holders of a lock."""
        return len(self._thread.call(self._thread.locks.holders, target(lock).lock))

    def queue_length(self, lock: TargetLike) -> int:
        """Returns the number of calls that wait for a lock."""
        return int(self._thread.call(self._thread.locks.queue_length, target(lock).lock))


class _BrokerThread:
    """The broker's thread, and the locks that only this thread accesses.

    The thread ends when the last reference to this object is dropped.
    """

    def __init__(self) -> None:
        self.locks = Locks()
        self.worker = Worker("leasehold-fake", self.locks.expire_waiters, self.locks.is_idle)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls ``what`` on the thread and returns its result. Blocks."""
        self.worker.check()
        results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.worker.post(lambda: results.put(function(*args)))
        return results.get()

    def __del__(self) -> None:
        if self.worker.is_started:
            self.worker.post(self.worker.stop)


class FakeBackend:
    """The backend of one client of a fake broker."""

    def __init__(self, thread: _BrokerThread) -> None:
        self._thread = thread

    def reference(self) -> object:
        """Returns a reference that keeps the broker alive."""
        return self._thread

    def connect(self, callback: Callable[[ConnectError | None], None]) -> None:
        """Reports a successful connection."""
        self._thread.worker.check()
        self._thread.worker.post(callback, None)

    def acquire(self, command: AcquireCommand) -> None:
        """Acquires locks and keeps their lease."""
        self._thread.worker.check()
        self._thread.worker.post(self._thread.locks.acquire, self, command)

    def cancel(self, request_id: str) -> None:
        """Cancels the acquire of a caller that no longer waits for its result."""
        self._thread.worker.post(self._thread.locks.cancel, request_id)

    def release(self, lease_id: str, scope: AcquireScope, callback: ReleaseCallback | None) -> None:
        """Releases the locks of one acquire."""
        self._thread.worker.post(self._thread.locks.release, lease_id, scope, callback)

    def get_lock_state(self, lock: LockName, callback: Callable[[LockState | Error | None], None]) -> None:
        """Reads the state of a lock."""
        self._thread.worker.check()
        self._thread.worker.post(lambda: callback(self._thread.locks.get_lock_state(self, lock)))

    def set_limit(self, lock: LockName, limit: int | None, callback: Callable[[int | Error | None], None]) -> None:
        """Sets or removes the limit of a lock."""
        self._thread.worker.check()
        self._thread.worker.post(lambda: callback(self._thread.locks.set_limit(self, lock, limit)))

    def close(self, callback: Callable[[], None], timeout: float = 0.0) -> None:  # noqa: ARG002
        """Cancels every wait of the client, releases its leases, and closes it."""
        self._thread.worker.post(self._thread.locks.close, self, callback)

    def create_handle(
        self, lease_id: str, command: AcquireCommand, tokens: list[tuple[LockName, int]], validity: Any
    ) -> LeaseHandle:
        """Creates the handle of a granted call."""
        return LeaseHandle(lease_id, tokens, command.params.request_id, validity, self, self._thread)
