"""One leader for a job, and everybody else who wants to know who that is, for asyncio."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from leasehold._core.options import Time
from leasehold.aio.lease import Lease
from leasehold.election import LOOK_EVERY
from leasehold.errors import Holder, StoreRecovering, Unavailable
from leasehold.target import Target

if TYPE_CHECKING:
    from leasehold.aio.client import Client


class Election:
    """The leader is whoever holds the lock of the job's name; the others wait for it in line."""

    def __init__(self, client: Client, job: Target, ttl: Time | None, reason: str) -> None:
        self._client = client
        self._job = job
        self._ttl = ttl
        self._reason = reason

    async def campaign(self) -> Lease:
        """Waits until this process leads, however long that takes. It leads as long as the lease is valid."""
        if self._ttl is None:
            return await self._client.acquire(self._job, wait=float("inf"), reason=self._reason)
        return await self._client.acquire(self._job, wait=float("inf"), reason=self._reason, ttl=self._ttl)

    def observe(self) -> Observer:
        """Watches who leads, without being a candidate."""
        return Observer(self._client, self._job)


class Observer:
    """Watches who leads."""

    def __init__(self, client: Client, job: Target) -> None:
        self._client = client
        self._job = job
        self._has_told = False
        self._told: str | None = None

    async def next(self) -> Holder | None:
        """The leader at the first call, then the next one when that changes; None while nobody leads.

        It looks about once a second, and again while no broker answers: a change is heard of late, and two quick
        ones perhaps as one. Never act on it as if it were a lock.
        """
        while True:
            if self._has_told:
                await asyncio.sleep(LOOK_EVERY * random.uniform(0.75, 1.25))
            try:
                state = await self._client.get(self._job)
            except (Unavailable, StoreRecovering):
                await asyncio.sleep(LOOK_EVERY)
                continue
            leader = state.holders[0] if state is not None and state.holders else None
            lease_id = leader.lease_id if leader is not None else None
            if not self._has_told or lease_id != self._told:
                self._has_told, self._told = True, lease_id
                return leader

    async def __aiter__(self) -> AsyncIterator[Holder | None]:
        while True:
            yield await self.next()
