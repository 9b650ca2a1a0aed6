"""The client for programs with threads. A process needs one client."""

from __future__ import annotations

import functools
import inspect
import queue
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, TypeVar, Union, cast

from leasehold._core.base import ClientBase
from leasehold._core.command import LockState
from leasehold.election import Election
from leasehold.errors import ConnectError, Error
from leasehold.lease import Lease
from leasehold.lock import Lock
from leasehold.target import TargetLike, checked_limit, target

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from leasehold._core.options import Duration, Options

F = TypeVar("F", bound=Callable[..., Any])
#: The lock of a decorated function: a target, or a callable that returns the target for the function's arguments.
LockSelector = Union[TargetLike, Callable[..., TargetLike]]


class Client(ClientBase):
    """A client of the brokers, from which locks and elections are created.

    The client renews its leases in a separate thread, so that the program cannot delay heartbeats. Thread safe.
    """

    def connect(self) -> Client:
        """Waits until a broker responds, so that connection errors do not occur only at the first call.

        Raises Unreachable if no broker answers, and CredentialRefused if no broker accepts the credential.
        """
        results: queue.SimpleQueue[ConnectError | None] = queue.SimpleQueue()
        self._backend.connect(results.put)
        error = results.get()
        if error is not None:
            raise error
        return self

    def lock(self, lock: TargetLike, **options: Unpack[Options]) -> Lock:
        """Creates a request for one lock, given by its name or as a Target.

        The request is not sent yet. For the keyword arguments see Options.
        """
        return Lock(self._template([lock], options))

    def lock_all(self, locks: Iterable[TargetLike], **options: Unpack[Options]) -> Lock:
        """Creates a request for 2 to 16 different locks.

        They are acquired all or none under one lease, in an order that cannot deadlock.
        """
        return Lock(self._template(list(locks), options))

    def acquire(self, lock: TargetLike, **options: Unpack[Options]) -> Lease:
        """Acquires a lock, waiting in its queue: ``lock(…).acquire()``."""
        return self.lock(lock, **options).acquire()

    def try_lock(
        self, lock: TargetLike, *, attempts: int = 1, every: Duration = 0.0, **options: Unpack[Options]
    ) -> Lease | None:
        """Acquires a lock if it is free, or returns None: ``lock(…).try_acquire()``."""
        return self.lock(lock, **options).try_acquire(attempts, every)

    def locked(self, lock: LockSelector, **options: Unpack[Options]) -> Callable[[F], F]:
        """Returns a decorator that runs the function while it holds the lock.

        ``lock`` may be a callable that returns the target for the function's arguments. Inside the function,
        ``assert_held`` finds the lease.
        """

        def decorate(function: F) -> F:
            if inspect.iscoroutinefunction(function):
                raise TypeError("a coroutine function requires a client of leasehold.aio")

            @functools.wraps(function)
            def run(*args: Any, **kwargs: Any) -> Any:
                lock_target = lock if isinstance(lock, str) or not callable(lock) else lock(*args, **kwargs)
                with self.lock(lock_target, **options):
                    return function(*args, **kwargs)

            return cast(F, run)

        return decorate

    def get(self, lock: TargetLike) -> LockState | None:
        """Returns the current state of a lock: its holders, queue length, closure and used permits.

        Returns None if the lock has neither holders nor waiters, is not closed, and has no set limit. Raises a subclass
        of AcquireError if no broker responded or the broker rejected the request.
        """
        results: queue.SimpleQueue[LockState | Error | None] = queue.SimpleQueue()
        self._backend.get_lock_state(target(lock).lock, results.put)
        result = results.get()
        if isinstance(result, Error):
            raise result
        return result

    def set_limit(self, lock: TargetLike, limit: int | None) -> int | None:
        """Sets the limit of a semaphore, 1-1000 permits, or removes a set limit if ``limit`` is None.

        Returns the limit that was in use or, after a removal, the limit that had been set; None if there was none. Of
        a Target, only the name and the namespace are used.

        Callers follow a set limit, whatever limit they send, until it is removed, also while the lock is idle. A lower
        limit revokes nothing: new grants wait until enough permits are released, and waiters that need more permits
        than the limit fail with LimitMismatch. After a removal, a lock in use keeps its limit until it is idle.

        If the broker has access rules, the caller needs the verb ``set_limit`` or ``admin``. Raises PermissionDenied
        without it, LimitMismatch if the lock is in use as an exclusive or shared lock, Invalid for a limit outside the
        range, Unavailable if no broker responded, and other subclasses of AcquireError. After Unavailable the limit may
        have been set; the call may be repeated.
        """
        results: queue.SimpleQueue[int | Error | None] = queue.SimpleQueue()
        self._backend.set_limit(target(lock).lock, checked_limit(limit), results.put)
        result = results.get()
        if isinstance(result, Error):
            raise result
        return result

    def elect(self, job: TargetLike, *, ttl: Duration | None = None, reason: str = "") -> Election:
        """Creates the election of one leader for ``job``."""
        return Election(self, target(job), ttl, reason)

    def shutdown(self) -> None:
        """Cancels every wait, releases every lease, and closes the client.

        Later calls fail with Closed, and remaining leases have lost their locks. Takes about 2 s at most. Leases that
        could not be released by then expire.
        """
        closed = threading.Event()
        self._backend.close(closed.set)
        # Longer than SHUTDOWN_TIMEOUT, which the client's thread enforces.
        closed.wait(3.0)

    def __enter__(self) -> Client:
        return self.connect()

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()
