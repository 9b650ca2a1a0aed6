"""Election of one leader for a job, and observation of the current leader, for asyncio."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from leasehold._core.options import Duration
from leasehold.aio.lease import Lease
from leasehold.election import POLL_INTERVAL
from leasehold.errors import Holder, StoreRecovering, Unavailable
from leasehold.target import Target

if TYPE_CHECKING:
    from leasehold.aio.client import Client


class Election:
    """The election of one leader.

    The leader is the holder of the lock with the name of the job. Other candidates wait in the queue of that lock.
    """

    def __init__(self, client: Client, job: Target, ttl: Duration | None, reason: str) -> None:
        self._client = client
        self._job = job
        self._ttl = ttl
        self._reason = reason

    async def campaign(self) -> Lease:
        """Waits without limit until this process is the leader. It leads while the returned lease is valid."""
        if self._ttl is None:
            return await self._client.acquire(self._job, wait=float("inf"), reason=self._reason)
        return await self._client.acquire(self._job, wait=float("inf"), reason=self._reason, ttl=self._ttl)

    def observe(self) -> Observer:
        """Returns an observer of the leader, without becoming a candidate."""
        return Observer(self._client, self._job)


class Observer:
    """An observer of the leader of a job, for one task. An iterator over it yields what ``next`` returns."""

    def __init__(self, client: Client, job: Target) -> None:
        self._client = client
        self._job = job
        self._has_returned = False
        self._last_lease_id: str | None = None

    async def next(self) -> Holder | None:
        """Returns the leader at the first call, and then waits for the next change. None: the job has no leader.

        The lock is read about once a second, and again while no broker answers. A change is therefore reported late,
        and two changes in quick succession perhaps as one. Never use the result in place of a lock.
        """
        while True:
            if self._has_returned:
                await asyncio.sleep(POLL_INTERVAL * random.uniform(0.75, 1.25))
            try:
                state = await self._client.get(self._job)
            except (Unavailable, StoreRecovering):
                await asyncio.sleep(POLL_INTERVAL)
                continue
            leader = state.holders[0] if state is not None and state.holders else None
            lease_id = leader.lease_id if leader is not None else None
            if not self._has_returned or lease_id != self._last_lease_id:
                self._has_returned, self._last_lease_id = True, lease_id
                return leader

    async def __aiter__(self) -> AsyncIterator[Holder | None]:
        while True:
            yield await self.next()
