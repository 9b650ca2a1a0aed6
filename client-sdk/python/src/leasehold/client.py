"""A client for programs of threads: one for each process."""

from __future__ import annotations

import functools
import inspect
import queue
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, TypeVar, Union, cast

from leasehold._core.base import ClientBase
from leasehold._core.order import LockState
from leasehold.election import Election
from leasehold.errors import ConnectError, Error
from leasehold.lease import Lease
from leasehold.lock import Lock
from leasehold.target import TargetLike, target

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from leasehold._core.options import Options, Time

F = TypeVar("F", bound=Callable[..., Any])
#: The lock of a function: named, or made from its arguments.
Named = Union[TargetLike, Callable[..., TargetLike]]


class Client(ClientBase):
    """Makes locks. A thread of its own keeps its leases alive, so nothing that the program does can hold
    heartbeats up. It may be used by any number of threads.
    """

    def connect(self) -> Client:
        """Makes sure that a broker answers now, instead of at the first call. Raises Unreachable or
        CredentialRefused.
        """
        told: queue.SimpleQueue[ConnectError | None] = queue.SimpleQueue()
        self._backend.connect(told.put)
        why = told.get()
        if why is not None:
            raise why
        return self

    def lock(self, lock: TargetLike, **options: Unpack[Options]) -> Lock:
        """A lock, by its name or as a Target. Nothing is taken yet. For the options see Options."""
        return Lock(self._plan([lock], options))

    def lock_all(self, locks: Iterable[TargetLike], **options: Unpack[Options]) -> Lock:
        """2-16 different locks, taken all or none under one lease, in an order that cannot deadlock."""
        return Lock(self._plan(list(locks), options))

    def acquire(self, lock: TargetLike, **options: Unpack[Options]) -> Lease:
        """Takes a lock, waiting in line: ``lock(…).acquire()``."""
        return self.lock(lock, **options).acquire()

    def try_lock(
        self, lock: TargetLike, *, attempts: int = 1, every: Time = 0.0, **options: Unpack[Options]
    ) -> Lease | None:
        """Takes a lock if it is free; None: somebody else has it. ``lock(…).try_acquire()``."""
        return self.lock(lock, **options).try_acquire(attempts, every)

    def locked(self, lock: Named, **options: Unpack[Options]) -> Callable[[F], F]:
        """A decorator: the function runs while it holds the lock, which a callable may name after the function's
        arguments. Inside, ``assert_held`` finds it.
        """

        def decorate(function: F) -> F:
            if inspect.iscoroutinefunction(function):
                raise TypeError("a coroutine function needs a client of leasehold.aio")

            @functools.wraps(function)
            def run(*args: Any, **kwargs: Any) -> Any:
                named = lock if isinstance(lock, str) or not callable(lock) else lock(*args, **kwargs)
                with self.lock(named, **options):
                    return function(*args, **kwargs)

            return cast(F, run)

        return decorate

    def get(self, lock: TargetLike) -> LockState | None:
        """Who holds a lock and how many wait, at this moment. None: nobody does either."""
        told: queue.SimpleQueue[LockState | Error | None] = queue.SimpleQueue()
        self._backend.look(target(lock).lock, told.put)
        said = told.get()
        if isinstance(said, Error):
            raise said
        return said

    def elect(self, job: TargetLike, *, ttl: Time | None = None, reason: str = "") -> Election:
        """The election of one leader for a job."""
        return Election(self, target(job), ttl, reason)

    def shutdown(self) -> None:
        """Gives up every wait, releases every lease, and ends the client: its calls fail from now on, and leases
        that are left have lost their locks. Takes at most 2 s; what could not be released by then runs out.
        """
        done = threading.Event()
        self._backend.close(done.set)
        # A little longer than the limit, which the client's own thread keeps.
        done.wait(3.0)

    def __enter__(self) -> Client:
        return self.connect()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()
