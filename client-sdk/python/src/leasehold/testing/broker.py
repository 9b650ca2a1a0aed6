"""The fake broker, and how its clients reach it."""

from __future__ import annotations

import queue
from typing import Any, Callable

from leasehold import aio
from leasehold._core.grip import Grip
from leasehold._core.order import Answer, Ask, Entry, LockState
from leasehold._core.worker import Worker
from leasehold.client import Client
from leasehold.errors import AcquireError, ConnectError, Error, Loss, LostReason
from leasehold.target import LockName, TargetLike, target
from leasehold.testing.locks import Locks


class FakeBroker:
    """A broker in memory whose locks are all free."""

    def __init__(self) -> None:
        self._site = _Site()

    def client(self, owner: str = "test") -> Client:
        """A client of it, for threads."""
        return Client.of(FakeBackend(self._site), owner)

    def aio_client(self, owner: str = "test") -> aio.Client:
        """A client of it, for asyncio."""
        return aio.Client.of(FakeBackend(self._site), owner)

    def lose(self, lock: TargetLike, reason: LostReason = LostReason.STORE_LOST, message: str = "") -> int:
        """Takes a lock away from everybody who holds it; how many leases are over with all their locks. The next in
        line gets it at once.
        """
        loss = Loss(reason, message)
        return int(self._site.ask(self._site.locks.lose, target(lock).lock, loss))

    def refuse(self, lock: TargetLike, error: AcquireError) -> None:
        """Answers the next call for this lock with an error, as a broker in trouble does."""
        self._site.ask(self._site.locks.refuse_next, target(lock).lock, error)

    def holder_count(self, lock: TargetLike) -> int:
        """How many hold a lock."""
        return len(self._site.ask(self._site.locks.holders, target(lock).lock))

    def queue_length(self, lock: TargetLike) -> int:
        """How many calls wait for a lock."""
        return int(self._site.ask(self._site.locks.queue_length, target(lock).lock))


class _Site:
    """One thread and the locks that only it touches. The thread ends with the last who refers to this."""

    def __init__(self) -> None:
        self.locks = Locks()
        self.worker = Worker("leasehold-fake", self.locks.time_out, self.locks.is_idle)

    def ask(self, what: Callable[..., Any], *args: Any) -> Any:
        """What the thread answers."""
        self.worker.check()
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.worker.post(lambda: answers.put(what(*args)))
        return answers.get()

    def __del__(self) -> None:
        if self.worker.is_started:
            self.worker.post(self.worker.stop)


class FakeBackend:
    """One client's way to a fake broker."""

    def __init__(self, site: _Site) -> None:
        self._site = site

    def handle(self) -> object:
        """Keeps it alive as long as it is kept."""
        return self._site

    def connect(self, told: Callable[[ConnectError | None], None]) -> None:
        """It answers."""
        self._site.worker.check()
        self._site.worker.post(told, None)

    def acquire(self, ask: Ask) -> None:
        """Takes locks, and keeps their lease."""
        self._site.worker.check()
        self._site.worker.post(self._site.locks.acquire, self, ask)

    def cancel(self, request_id: str) -> None:
        """The caller is gone. What it got is given back."""
        self._site.worker.post(self._site.locks.cancel, request_id)

    def release(self, lease_id: str, entry: Entry, answer: Answer | None) -> None:
        """Gives back what one acquire has got."""
        self._site.worker.post(self._site.locks.release, lease_id, entry, answer)

    def look(self, lock: LockName, told: Callable[[LockState | Error | None], None]) -> None:
        """Looks at a lock."""
        self._site.worker.check()
        self._site.worker.post(lambda: told(self._site.locks.look(self, lock)))

    def close(self, done: Callable[[], None], limit: float = 0.0) -> None:  # noqa: ARG002
        """Gives up every wait, releases every lease, and ends."""
        self._site.worker.post(self._site.locks.close, self, done)

    def grip(self, lease_id: str, ask: Ask, tokens: list[tuple[LockName, int]], trust: Any) -> Grip:
        """What a call has got."""
        return Grip(lease_id, tokens, ask.call.request_id, trust, self, self._site)
