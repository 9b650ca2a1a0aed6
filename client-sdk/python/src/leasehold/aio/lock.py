"""Taking a lock, for asyncio."""

from __future__ import annotations

import asyncio
import logging
import random
import weakref
from types import TracebackType
from typing import Any

from leasehold._core import clock, telemetry
from leasehold._core.options import WAIT_MAX, Plan, Time, seconds
from leasehold.aio.bridge import Reply
from leasehold.aio.lease import Lease
from leasehold.errors import Error, Held, WaitTimeout

log = logging.getLogger("leasehold")


class Lock:
    """A lock, or several, about to be taken: by an ``async with`` block, ``acquire`` or ``try_acquire``, as often as
    wanted and by any number of tasks. Each time makes a lease of its own.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # The leases of the blocks that each task is in.
        self._entered: weakref.WeakKeyDictionary[asyncio.Task[Any], list[Lease]]
        self._entered = weakref.WeakKeyDictionary()

    async def acquire(self) -> Lease:
        """Takes the lock, waiting in line.

        Raises WaitTimeout if it was held for all of ``wait``, by whom it says; Unavailable up to 5 s after that if
        no broker could answer. Cancelling it gives up the place in line; a lock that was granted at that moment is
        given back.
        """
        until = clock.now() + self._plan.wait
        while True:
            left = max(0.0, until - clock.now())
            try:
                return await self._ask(min(left, WAIT_MAX))
            except WaitTimeout:
                if clock.now() >= until:
                    raise

    async def try_acquire(self, attempts: int = 1, every: Time = 0.0) -> Lease | None:
        """Takes the lock if it is free. None: somebody else has it.

        With ``attempts`` it tries up to so many times, ``every`` so often give or take a quarter. Waiting in
        line, as ``acquire`` does, is fair and faster.
        """
        pause = seconds(every)
        for attempt in range(attempts):
            if attempt > 0:
                await asyncio.sleep(pause * random.uniform(0.75, 1.25))
            try:
                return await self._ask(0.0)
            except Held:
                continue
        return None

    async def _ask(self, wait: float) -> Lease:
        with telemetry.Acquiring(self._plan.names(), wait) as acquiring:
            return await self._ask_in(acquiring, wait)

    async def _ask_in(self, acquiring: telemetry.Acquiring, wait: float) -> Lease:
        reply = Reply(acquiring.hook(self._plan.on_queue))
        caller, ask = self._plan.caller(), self._plan.ask(wait, reply)
        try:
            caller.acquire(ask)
            result = await reply.future
        except BaseException:
            caller.cancel(ask.call.request_id)
            reply.drop()
            raise
        acquiring.answered(result)
        if isinstance(result, Error):
            log.debug("not granted: %s: %s", self._plan, result)
            raise result
        return Lease(result, self._plan.on_lost)

    async def __aenter__(self) -> Lease:
        lease = await self.acquire()
        task = asyncio.current_task()
        if task is not None:
            self._entered.setdefault(task, []).append(lease)
        return await lease.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        task = asyncio.current_task()
        if task is not None:
            await self._entered[task].pop().__aexit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<aio.{type(self).__name__} {self._plan}>"
