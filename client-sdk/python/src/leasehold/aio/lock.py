"""Acquiring one or several locks, for asyncio."""

from __future__ import annotations

import asyncio
import logging
import random
import weakref
from types import TracebackType
from typing import Any

from leasehold._core import clock, telemetry
from leasehold._core.options import WAIT_MAX, AcquireTemplate, Duration, to_seconds
from leasehold.aio.bridge import LoopReceiver
from leasehold.aio.lease import Lease
from leasehold.errors import Error, Held, WaitTimeout

log = logging.getLogger("leasehold")


class Lock:
    """A request for one lock, or for several.

    An ``async with`` block, ``acquire`` and ``try_acquire`` send the request. Any number of tasks may do so repeatedly.
    Each acquire creates a separate lease.
    """

    def __init__(self, template: AcquireTemplate) -> None:
        self._template = template
        # The leases of the ``async with`` blocks that each task is in.
        self._task_leases: weakref.WeakKeyDictionary[asyncio.Task[Any], list[Lease]]
        self._task_leases = weakref.WeakKeyDictionary()

    async def acquire(self) -> Lease:
        """Acquires the lock, waiting in its queue.

        Raises WaitTimeout, with the holders, if the lock was held for the whole of ``wait``. Raises Unavailable up to
        5 s later if no broker responded. Raises other subclasses of AcquireError for a rejected request. Cancelling the
        call removes it from the queue; a lock that is granted at that moment is released.
        """
        deadline = clock.now() + self._template.wait
        while True:
            remaining = max(0.0, deadline - clock.now())
            try:
                return await self._acquire_once(min(remaining, WAIT_MAX))
            except WaitTimeout:
                if clock.now() >= deadline:
                    raise

    async def try_acquire(self, attempts: int = 1, every: Duration = 0.0) -> Lease | None:
        """Acquires the lock if it is free. Returns None if another caller holds it, or it is closed.

        Tries up to ``attempts`` times, with pauses of ``every`` plus or minus a quarter. Waiting in the queue with
        ``acquire`` is fair and faster. Raises every subclass of AcquireError except Held.
        """
        interval_seconds = to_seconds(every)
        for attempt in range(attempts):
            if attempt > 0:
                await asyncio.sleep(interval_seconds * random.uniform(0.75, 1.25))
            try:
                return await self._acquire_once(0.0)
            except Held:
                continue
        return None

    async def _acquire_once(self, wait: float) -> Lease:
        with telemetry.AcquireSpan(self._template.names(), wait) as span:
            return await self._acquire_in_span(span, wait)

    async def _acquire_in_span(self, span: telemetry.AcquireSpan, wait: float) -> Lease:
        receiver = LoopReceiver(span.queue_hook(self._template.on_queue))
        sender, command = self._template.sender(), self._template.command(wait, receiver)
        try:
            sender.acquire(command)
            result = await receiver.future
        except BaseException:
            sender.cancel(command.params.request_id)
            receiver.release_undelivered()
            raise
        span.record_result(result)
        if isinstance(result, Error):
            log.debug("not granted: %s: %s", self._template, result)
            raise result
        return Lease(result, self._template.on_lost)

    async def __aenter__(self) -> Lease:
        lease = await self.acquire()
        task = asyncio.current_task()
        if task is not None:
            self._task_leases.setdefault(task, []).append(lease)
        return await lease.__aenter__()

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task = asyncio.current_task()
        if task is not None:
            await self._task_leases[task].pop().__aexit__(error_type, error, traceback)

    def __repr__(self) -> str:
        return f"<aio.{type(self).__name__} {self._template}>"
