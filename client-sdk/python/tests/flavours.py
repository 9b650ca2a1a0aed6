"""Both interfaces as one, so that a behaviour is written once: threads as seen from asyncio."""

from __future__ import annotations

import asyncio
import enum
from typing import Any, Callable, Protocol

from processes import Broker

import leasehold
from leasehold import LockState, LostReason, aio
from leasehold.testing import FakeBroker

SOON = 5.0


class Flavour(enum.Enum):
    """Which interface."""

    THREADS = "threads"
    AIO = "aio"


class Lease:
    """A lease of either interface."""

    def __init__(self, inner: leasehold.Lease | aio.Lease) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def release(self) -> None:
        """Gives it back."""
        if isinstance(self.inner, aio.Lease):
            await self.inner.release()
        else:
            await asyncio.to_thread(self.inner.release)

    async def lost(self, timeout: float = 10.0) -> LostReason:
        """Waits until it is lost; why."""
        if isinstance(self.inner, aio.Lease):
            return await asyncio.wait_for(self.inner.lost.wait(), timeout)
        why = await asyncio.to_thread(self.inner.lost.wait, timeout)
        assert why is not None, "it is not lost"
        return why


class Client:
    """A client of either interface."""

    def __init__(self, inner: leasehold.Client | aio.Client) -> None:
        self.inner = inner

    async def _do(self, name: str, *args: Any, **options: Any) -> Any:
        if "under" in options:
            options["under"] = options["under"].inner
        what = getattr(self.inner, name)
        if isinstance(self.inner, aio.Client):
            return await what(*args, **options)
        return await asyncio.to_thread(what, *args, **options)

    async def acquire(self, lock: Any, **options: Any) -> Lease:
        """Takes a lock."""
        return Lease(await self._do("acquire", lock, **options))

    async def try_lock(self, lock: Any, **options: Any) -> Lease | None:
        """Takes a lock if it is free."""
        lease = await self._do("try_lock", lock, **options)
        return None if lease is None else Lease(lease)

    async def all(self, locks: list[Any], **options: Any) -> Lease:
        """Takes several."""
        lock = self.inner.lock_all(locks, **options)
        if isinstance(lock, aio.Lock):
            return Lease(await lock.acquire())
        return Lease(await asyncio.to_thread(lock.acquire))

    async def try_all(self, locks: list[Any]) -> Lease | None:
        """Takes several if they are free."""
        lock = self.inner.lock_all(locks)
        if isinstance(lock, aio.Lock):
            lease: Any = await lock.try_acquire()
        else:
            lease = await asyncio.to_thread(lock.try_acquire)
        return None if lease is None else Lease(lease)

    async def get(self, lock: Any) -> LockState | None:
        """Looks at a lock."""
        state: LockState | None = await self._do("get", lock)
        return state

    async def shutdown(self) -> None:
        """Ends it."""
        await self._do("shutdown")

    async def connect(self) -> None:
        """Connects."""
        await self._do("connect")


def client_of(flavour: Flavour, endpoints: Any, **settings: Any) -> Client:
    """A client of these brokers."""
    make: Callable[..., Any] = leasehold.Client if flavour is Flavour.THREADS else aio.Client
    return Client(make(endpoints, **settings))


class Site(Protocol):
    """Whom the clients of a test talk to."""

    def client(self, owner: str) -> Client:
        """A client."""

    async def waits_for(self, lock: str, count: int) -> None:
        """Waits until so many wait for a lock."""


class RealSite:
    """A broker process."""

    def __init__(self, broker: Broker, flavour: Flavour) -> None:
        self._broker = broker
        self._flavour = flavour
        self._observer: Client | None = None

    def client(self, owner: str) -> Client:
        """A client of it."""
        return client_of(self._flavour, self._broker.url, owner=owner)

    async def waits_for(self, lock: str, count: int) -> None:
        """Waits until so many wait for a lock."""
        if self._observer is None:
            self._observer = self.client("observer")
        await waits_for(self._observer, lock, count)


class FakeSite:
    """The package's own fake."""

    def __init__(self, flavour: Flavour) -> None:
        self.broker = FakeBroker()
        self._flavour = flavour

    def client(self, owner: str) -> Client:
        """A client of it."""
        if self._flavour is Flavour.THREADS:
            return Client(self.broker.client(owner))
        return Client(self.broker.aio_client(owner))

    async def waits_for(self, lock: str, count: int) -> None:
        """Waits until so many wait for a lock."""
        await waits_for(self.client("observer"), lock, count)


async def waits_for(observer: Client, lock: str, count: int) -> None:
    """Waits until so many wait for a lock."""

    async def looks() -> None:
        while True:
            state = await observer.get(lock)
            if (state.queue_length if state is not None else 0) == count:
                return

    await asyncio.wait_for(looks(), SOON)


async def takes(client: Client, lock: str) -> int:
    """Takes a lock that is free or soon will be, and gives it back; its token."""
    lease = await client.acquire(lock, wait=SOON)
    await lease.release()
    return int(lease.fencing_token)
