"""The client for asyncio programs. A process needs one client."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, TypeVar, cast

from leasehold._core.base import ClientBase
from leasehold._core.command import LockState
from leasehold.aio.bridge import ThreadSafeFuture
from leasehold.aio.election import Election
from leasehold.aio.lease import Lease
from leasehold.aio.lock import Lock
from leasehold.client import LockSelector
from leasehold.errors import ConnectError, Error
from leasehold.target import TargetLike, checked_limit, target

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from leasehold._core.options import Duration, Options

F = TypeVar("F", bound=Callable[..., Any])


class Client(ClientBase):
    """A client of the brokers, from which locks and elections are created.

    The client renews its leases in a separate thread, so that a blocked event loop cannot delay heartbeats. Any number
    of tasks and event loops may use it.
    """

    async def connect(self) -> Client:
        """Waits until a broker responds, so that connection errors do not occur only at the first call.

        Raises Unreachable if no broker answers, and CredentialRefused if no broker accepts the credential.
        """
        result: ThreadSafeFuture[ConnectError | None] = ThreadSafeFuture()
        self._backend.connect(result.set_result)
        error = await result.future
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

    async def acquire(self, lock: TargetLike, **options: Unpack[Options]) -> Lease:
        """Acquires a lock, waiting in its queue: ``lock(…).acquire()``."""
        return await self.lock(lock, **options).acquire()

    async def try_lock(
        self, lock: TargetLike, *, attempts: int = 1, every: Duration = 0.0, **options: Unpack[Options]
    ) -> Lease | None:
        """Acquires a lock if it is free, or returns None: ``lock(…).try_acquire()``."""
        return await self.lock(lock, **options).try_acquire(attempts, every)

    def locked(self, lock: LockSelector, **options: Unpack[Options]) -> Callable[[F], F]:
        """Returns a decorator that runs the coroutine function while it holds the lock.

        ``lock`` may be a callable that returns the target for the function's arguments. Inside the function,
        ``assert_held`` finds the lease. The function is cancelled if the lock is lost.
        """

        def decorate(function: F) -> F:
            if not inspect.iscoroutinefunction(function):
                raise TypeError("expected a coroutine function; other functions require a client of leasehold")

            @functools.wraps(function)
            async def run(*args: Any, **kwargs: Any) -> Any:
                lock_target = lock if isinstance(lock, str) or not callable(lock) else lock(*args, **kwargs)
                async with self.lock(lock_target, **options):
                    return await function(*args, **kwargs)

            return cast(F, run)

        return decorate

    async def get(self, lock: TargetLike) -> LockState | None:
        """Returns the current state of a lock: its holders, queue length, closure and used permits.

        Returns None if the lock has neither holders nor waiters, is not closed, and has no set limit. Raises a subclass
        of AcquireError if no broker responded or the broker rejected the request.
        """
        result: ThreadSafeFuture[LockState | Error | None] = ThreadSafeFuture()
        self._backend.get_lock_state(target(lock).lock, result.set_result)
        state = await result.future
        if isinstance(state, Error):
            raise state
        return state

    async def set_limit(self, lock: TargetLike, limit: int | None) -> int | None:
        """Sets the limit of a semaphore, 1-1000 permits, or removes a set limit if ``limit`` is None.

        Returns the limit that was in use or, after a removal, the limit that had been set; None if there was none. Of
        a Target, only the name and the namespace are used.

        Callers follow a set limit, whatever limit they send, until it is removed, also while the lock is idle. A lower
        limit revokes nothing: new grants wait until enough permits are released, and waiters that need more permits
        than the limit fail with LimitMismatch. After a removal, a lock in use keeps its limit until it is idle.

        If the broker has access rules, the caller needs the verb ``set_limit`` or ``admin``. Raises PermissionDenied
        without it, LimitMismatch if the lock is in use as an exclusive or shared lock, Invalid for a limit outside the
        range, Unavailable if no broker responded, and other subclasses of AcquireError. After Unavailable, or if
        the task is cancelled, the limit may have been set; the call may be repeated.
        """
        result: ThreadSafeFuture[int | Error | None] = ThreadSafeFuture()
        self._backend.set_limit(target(lock).lock, checked_limit(limit), result.set_result)
        previous_limit = await result.future
        if isinstance(previous_limit, Error):
            raise previous_limit
        return previous_limit

    def elect(self, job: TargetLike, *, ttl: Duration | None = None, reason: str = "") -> Election:
        """Creates the election of one leader for ``job``."""
        return Election(self, target(job), ttl, reason)

    async def shutdown(self) -> None:
        """Cancels every wait, releases every lease, and closes the client.

        Later calls fail with Closed, and remaining leases have lost their locks. Takes about 2 s at most. Leases that
        could not be released by then expire.
        """
        closed: ThreadSafeFuture[None] = ThreadSafeFuture()
        self._backend.close(lambda: closed.set_result(None))
        # Longer than SHUTDOWN_TIMEOUT, which the client's thread enforces.
        await asyncio.wait([closed.future], timeout=3.0)

    async def __aenter__(self) -> Client:
        return await self.connect()

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.shutdown()
