"""Acquiring one or several locks, for threads."""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from types import TracebackType

from leasehold._core import clock, telemetry
from leasehold._core.command import QueuePosition
from leasehold._core.lease_handle import LeaseHandle
from leasehold._core.options import WAIT_MAX, AcquireTemplate, Duration, to_seconds
from leasehold.errors import Error, Held, WaitTimeout
from leasehold.lease import Lease

log = logging.getLogger("leasehold")


class Lock:
    """A request for one lock, or for several.

    A ``with`` block, ``acquire`` and ``try_acquire`` send the request. Any number of threads may do so repeatedly.
    Each acquire creates a separate lease.
    """

    def __init__(self, template: AcquireTemplate) -> None:
        self._template = template
        self._thread_leases = _ThreadLeases()

    def acquire(self) -> Lease:
        """Acquires the lock, waiting in its queue.

        Raises WaitTimeout, with the holders, if the lock was held for the whole of ``wait``. Raises Unavailable up to
        5 s later if no broker responded. Raises other subclasses of AcquireError for a rejected request. An exception
        that interrupts the call, such as KeyboardInterrupt, removes it from the queue.
        """
        deadline = clock.now() + self._template.wait
        while True:
            remaining = max(0.0, deadline - clock.now())
            try:
                return self._acquire_once(min(remaining, WAIT_MAX))
            except WaitTimeout:
                if clock.now() >= deadline:
                    raise

    def try_acquire(self, attempts: int = 1, every: Duration = 0.0) -> Lease | None:
        """Acquires the lock if it is free. Returns None if another caller holds it, or it is closed.

        Tries up to ``attempts`` times, with pauses of ``every`` plus or minus a quarter. Waiting in the queue with
        ``acquire`` is fair and faster. Raises every subclass of AcquireError except Held.
        """
        interval_seconds = to_seconds(every)
        for attempt in range(attempts):
            if attempt > 0:
                time.sleep(interval_seconds * random.uniform(0.75, 1.25))
            try:
                return self._acquire_once(0.0)
            except Held:
                continue
        return None

    def _acquire_once(self, wait: float) -> Lease:
        with telemetry.AcquireSpan(self._template.names(), wait) as span:
            return self._acquire_in_span(span, wait)

    def _acquire_in_span(self, span: telemetry.AcquireSpan, wait: float) -> Lease:
        receiver = _QueueReceiver()
        on_queue = span.queue_hook(self._template.on_queue)
        sender, command = self._template.sender(), self._template.command(wait, receiver)
        try:
            sender.acquire(command)
            while True:
                message = receiver.messages.get()
                if not isinstance(message, QueuePosition):
                    break
                if on_queue is not None:
                    on_queue(message)
        except BaseException:
            sender.cancel(command.params.request_id)
            raise
        span.record_result(message)
        if isinstance(message, Error):
            log.debug("not granted: %s: %s", self._template, message)
            raise message
        return Lease(message, self._template.on_lost)

    def __enter__(self) -> Lease:
        lease = self.acquire()
        self._thread_leases.leases.append(lease)
        return lease.__enter__()

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread_leases.leases.pop().__exit__(error_type, error, traceback)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._template}>"


class _ThreadLeases(threading.local):
    """The leases of the ``with`` blocks that the current thread is in."""

    def __init__(self) -> None:
        self.leases: list[Lease] = []


class _QueueReceiver:
    """A queue of messages from the client's thread to the calling thread."""

    def __init__(self) -> None:
        self.messages: queue.SimpleQueue[LeaseHandle | Error | QueuePosition] = queue.SimpleQueue()

    def on_queue_position(self, position: QueuePosition) -> None:
        """Sends the queue position of the call."""
        self.messages.put(position)

    def on_result(self, result: LeaseHandle | Error) -> None:
        """Sends the result of the call."""
        self.messages.put(result)
