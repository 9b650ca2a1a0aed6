"""A common asyncio interface to the clients for threads and for asyncio, so that each test is written once."""

from __future__ import annotations

import asyncio
import enum
from typing import Any, Callable, Protocol

from processes import Broker

import leasehold
from leasehold import LockState, LostReason, aio
from leasehold.testing import FakeBroker

TIMEOUT = 5.0


class Interface(enum.Enum):
    """An interface of the client."""

    THREADS = "threads"
    AIO = "aio"


class Lease:
    """A lease of either interface."""

    def __init__(self, inner: leasehold.Lease | aio.Lease) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def release(self) -> None:
        """Releases the lease."""
        if isinstance(self.inner, aio.Lease):
            await self.inner.release()
        else:
            await asyncio.to_thread(self.inner.release)

    async def lost(self, timeout: float = 10.0) -> LostReason:
        """Waits until the lease is lost and returns the reason."""
        if isinstance(self.inner, aio.Lease):
            return await asyncio.wait_for(self.inner.lost.wait(), timeout)
        reason = await asyncio.to_thread(self.inner.lost.wait, timeout)
        assert reason is not None, "the lease is not lost"
        return reason


class Client:
    """A client of either interface."""

    def __init__(self, inner: leasehold.Client | aio.Client) -> None:
        self.inner = inner

    async def _call(self, name: str, *args: Any, **options: Any) -> Any:
        if "under" in options:
            options["under"] = options["under"].inner
        method = getattr(self.inner, name)
        if isinstance(self.inner, aio.Client):
            return await method(*args, **options)
        return await asyncio.to_thread(method, *args, **options)

    async def acquire(self, lock: Any, **options: Any) -> Lease:
        """Acquires a lock."""
        return Lease(await self._call("acquire", lock, **options))

    async def try_lock(self, lock: Any, **options: Any) -> Lease | None:
        """Acquires a lock if it is free."""
        lease = await self._call("try_lock", lock, **options)
        return None if lease is None else Lease(lease)

    async def all(self, locks: list[Any], **options: Any) -> Lease:
        """Acquires several locks."""
        lock = self.inner.lock_all(locks, **options)
        if isinstance(lock, aio.Lock):
            return Lease(await lock.acquire())
        return Lease(await asyncio.to_thread(lock.acquire))

    async def try_all(self, locks: list[Any]) -> Lease | None:
        """Acquires several locks if they are free."""
        lock = self.inner.lock_all(locks)
        if isinstance(lock, aio.Lock):
            lease: Any = await lock.try_acquire()
        else:
            lease = await asyncio.to_thread(lock.try_acquire)
        return None if lease is None else Lease(lease)

    async def get(self, lock: Any) -> LockState | None:
        """Reads the state of a lock."""
        state: LockState | None = await self._call("get", lock)
        return state

    async def set_limit(self, lock: Any, limit: int | None) -> int | None:
        """Sets or removes the limit of a lock."""
        previous_limit: int | None = await self._call("set_limit", lock, limit)
        return previous_limit

    async def shutdown(self) -> None:
        """Shuts down the client."""
        await self._call("shutdown")

    async def connect(self) -> None:
        """Waits until a broker responds."""
        await self._call("connect")


def create_client(interface: Interface, endpoints: Any, **settings: Any) -> Client:
    """Creates a client of these brokers."""
    make: Callable[..., Any] = leasehold.Client if interface is Interface.THREADS else aio.Client
    return Client(make(endpoints, **settings))


class BrokerFixture(Protocol):
    """The broker of a test, from which its clients are created."""

    def client(self, owner: str) -> Client:
        """Creates a client of the broker."""

    async def wait_for_waiters(self, lock: str, count: int) -> None:
        """Waits until ``count`` calls wait for a lock."""


class RealBrokerFixture:
    """A broker process."""

    def __init__(self, broker: Broker, interface: Interface) -> None:
        self._broker = broker
        self._interface = interface
        self._observer: Client | None = None

    def client(self, owner: str) -> Client:
        """Creates a client of the broker."""
        return create_client(self._interface, self._broker.url, owner=owner)

    async def wait_for_waiters(self, lock: str, count: int) -> None:
        """Waits until ``count`` calls wait for a lock."""
        if self._observer is None:
            self._observer = self.client("observer")
        await wait_for_waiters(self._observer, lock, count)


class FakeBrokerFixture:
    """The fake broker of the package."""

    def __init__(self, interface: Interface) -> None:
        self.broker = FakeBroker()
        self._interface = interface

    def client(self, owner: str) -> Client:
        """Creates a client of the broker."""
        if self._interface is Interface.THREADS:
            return Client(self.broker.client(owner))
        return Client(self.broker.aio_client(owner))

    async def wait_for_waiters(self, lock: str, count: int) -> None:
        """Waits until ``count`` calls wait for a lock."""
        await wait_for_waiters(self.client("observer"), lock, count)


async def wait_for_waiters(observer: Client, lock: str, count: int) -> None:
    """Waits until ``count`` calls wait for a lock."""

    async def poll() -> None:
        while True:
            state = await observer.get(lock)
            if (state.queue_length if state is not None else 0) == count:
                return

    await asyncio.wait_for(poll(), TIMEOUT)


async def acquire_and_release(client: Client, lock: str) -> int:
    """Acquires a lock within ``SOON`` seconds, releases it, and returns its fencing token."""
    lease = await client.acquire(lock, wait=TIMEOUT)
    await lease.release()
    return int(lease.fencing_token)
