"""A client for asyncio programs: one for each process."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, TypeVar, cast

from leasehold._core.base import ClientBase
from leasehold._core.order import LockState
from leasehold.aio.bridge import Once
from leasehold.aio.election import Election
from leasehold.aio.lease import Lease
from leasehold.aio.lock import Lock
from leasehold.client import Named
from leasehold.errors import ConnectError, Error
from leasehold.target import TargetLike, target

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from leasehold._core.options import Options, Time

F = TypeVar("F", bound=Callable[..., Any])


class Client(ClientBase):
    """Makes locks. A thread of its own keeps its leases alive, so nothing that the program does, or does not
    await, can hold heartbeats up. It may be used by any number of tasks and event loops.
    """

    async def connect(self) -> Client:
        """Makes sure that a broker answers now, instead of at the first call. Raises Unreachable or
        CredentialRefused.
        """
        told: Once[ConnectError | None] = Once()
        self._backend.connect(told.tell)
        why = await told.future
        if why is not None:
            raise why
        return self

    def lock(self, lock: TargetLike, **options: Unpack[Options]) -> Lock:
        """A lock, by its name or as a Target. Nothing is taken yet. For the options see Options."""
        return Lock(self._plan([lock], options))

    def lock_all(self, locks: Iterable[TargetLike], **options: Unpack[Options]) -> Lock:
        """2-16 different locks, taken all or none under one lease, in an order that cannot deadlock."""
        return Lock(self._plan(list(locks), options))

    async def acquire(self, lock: TargetLike, **options: Unpack[Options]) -> Lease:
        """Takes a lock, waiting in line: ``lock(…).acquire()``."""
        return await self.lock(lock, **options).acquire()

    async def try_lock(
        self, lock: TargetLike, *, attempts: int = 1, every: Time = 0.0, **options: Unpack[Options]
    ) -> Lease | None:
        """Takes a lock if it is free; None: somebody else has it. ``lock(…).try_acquire()``."""
        return await self.lock(lock, **options).try_acquire(attempts, every)

    def locked(self, lock: Named, **options: Unpack[Options]) -> Callable[[F], F]:
        """A decorator: the coroutine function runs while it holds the lock, which a callable may name after the
        function's arguments. Inside, ``assert_held`` finds it; on loss it is cancelled.
        """

        def decorate(function: F) -> F:
            if not inspect.iscoroutinefunction(function):
                raise TypeError("only a coroutine function; others need a client of leasehold")

            @functools.wraps(function)
            async def run(*args: Any, **kwargs: Any) -> Any:
                named = lock if isinstance(lock, str) or not callable(lock) else lock(*args, **kwargs)
                async with self.lock(named, **options):
                    return await function(*args, **kwargs)

            return cast(F, run)

        return decorate

    async def get(self, lock: TargetLike) -> LockState | None:
        """Who holds a lock and how many wait, at this moment. None: nobody does either."""
        told: Once[LockState | Error | None] = Once()
        self._backend.look(target(lock).lock, told.tell)
        said = await told.future
        if isinstance(said, Error):
            raise said
        return said

    def elect(self, job: TargetLike, *, ttl: Time | None = None, reason: str = "") -> Election:
        """The election of one leader for a job."""
        return Election(self, target(job), ttl, reason)

    async def shutdown(self) -> None:
        """Gives up every wait, releases every lease, and ends the client: its calls fail from now on, and leases
        that are left have lost their locks. Takes at most 2 s; what could not be released by then runs out.
        """
        done: Once[None] = Once()
        self._backend.close(lambda: done.tell(None))
        # A little longer than the limit, which the client's own thread keeps.
        await asyncio.wait([done.future], timeout=3.0)

    async def __aenter__(self) -> Client:
        return await self.connect()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.shutdown()
