"""Taking a lock, for threads."""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from types import TracebackType

from leasehold._core import clock, telemetry
from leasehold._core.grip import Grip
from leasehold._core.options import WAIT_MAX, Plan, Time, seconds
from leasehold._core.order import Place
from leasehold.errors import Error, Held, WaitTimeout
from leasehold.lease import Lease

log = logging.getLogger("leasehold")


class Lock:
    """A lock, or several, about to be taken: by a ``with`` block, ``acquire`` or ``try_acquire``, as often as
    wanted and by any number of threads. Each time makes a lease of its own.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._entered = _Entered()

    def acquire(self) -> Lease:
        """Takes the lock, waiting in line.

        Raises WaitTimeout if it was held for all of ``wait``, by whom it says; Unavailable up to 5 s after that if
        no broker could answer. An exception that interrupts it gives up the place in line.
        """
        until = clock.now() + self._plan.wait
        while True:
            left = max(0.0, until - clock.now())
            try:
                return self._ask(min(left, WAIT_MAX))
            except WaitTimeout:
                if clock.now() >= until:
                    raise

    def try_acquire(self, attempts: int = 1, every: Time = 0.0) -> Lease | None:
        """Takes the lock if it is free. None: somebody else has it.

        With ``attempts`` it tries up to so many times, ``every`` so often give or take a quarter. Waiting in
        line, as ``acquire`` does, is fair and faster.
        """
        pause = seconds(every)
        for attempt in range(attempts):
            if attempt > 0:
                time.sleep(pause * random.uniform(0.75, 1.25))
            try:
                return self._ask(0.0)
            except Held:
                continue
        return None

    def _ask(self, wait: float) -> Lease:
        with telemetry.Acquiring(self._plan.names(), wait) as acquiring:
            return self._ask_in(acquiring, wait)

    def _ask_in(self, acquiring: telemetry.Acquiring, wait: float) -> Lease:
        reply = _Reply()
        on_queue = acquiring.hook(self._plan.on_queue)
        caller, ask = self._plan.caller(), self._plan.ask(wait, reply)
        try:
            caller.acquire(ask)
            while True:
                said = reply.said.get()
                if not isinstance(said, Place):
                    break
                if on_queue is not None:
                    on_queue(said)
        except BaseException:
            caller.cancel(ask.call.request_id)
            raise
        acquiring.answered(said)
        if isinstance(said, Error):
            log.debug("not granted: %s: %s", self._plan, said)
            raise said
        return Lease(said, self._plan.on_lost)

    def __enter__(self) -> Lease:
        lease = self.acquire()
        self._entered.leases.append(lease)
        return lease.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._entered.leases.pop().__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._plan}>"


class _Entered(threading.local):
    """The leases of the blocks that this thread is in."""

    def __init__(self) -> None:
        self.leases: list[Lease] = []


class _Reply:
    """What the client's thread says to the calling one."""

    def __init__(self) -> None:
        self.said: queue.SimpleQueue[Grip | Error | Place] = queue.SimpleQueue()

    def place(self, place: Place) -> None:
        """Where the call stands."""
        self.said.put(place)

    def done(self, result: Grip | Error) -> None:
        """What it got."""
        self.said.put(result)
