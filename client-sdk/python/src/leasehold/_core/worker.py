"""One thread that does one thing after the other, and looks at the time in between."""

from __future__ import annotations

import logging
import queue
import threading
from typing import Any, Callable

from leasehold._core import clock, process
from leasehold.errors import Forked

log = logging.getLogger("leasehold")

#: How often the time is looked at, in seconds. Not later: no timer runs through a suspend.
TICK = 0.05

Job = tuple[Callable[..., object], tuple[Any, ...]]


class Worker:
    """Begins with the first job, so that a client may be made before a fork and used after it."""

    def __init__(self, name: str, tick: Callable[[float], None], is_idle: Callable[[], bool]) -> None:
        self._name = name
        self._tick = tick
        self._is_idle = is_idle
        # Jobs come from finalizers, too, which may run at any moment in any thread.
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        # Whoever runs jobs: the thread, and when that has ended whoever has another one.
        self._running = threading.RLock()
        self._starting = threading.RLock()
        self._generation: int | None = None
        self._is_over = False

    @property
    def is_started(self) -> bool:
        """Whether anything was ever done."""
        return self._generation is not None

    def belongs_to(self, generation: int) -> bool:
        """Whether it was started in that process."""
        return self._generation == generation

    def check(self) -> None:
        """Fails in a child of the process whose thread it is."""
        if self._generation not in (None, process.generation()):
            raise Forked

    def post(self, what: Callable[..., object], *args: Any) -> None:
        """Has the thread do something. In a child of a fork nothing is done."""
        if self._generation is None:
            self._start()
        if self._generation != process.generation():
            return
        self._jobs.put((what, args))
        if self._is_over:
            self._drain()

    def stop(self) -> None:
        """Ends the thread after what it has to do. To be called by a job."""
        self._is_over = True
        self._jobs.put(None)

    def _start(self) -> None:
        with self._starting:
            if self._generation is None:
                self._generation = process.generation()
                threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        ticked = clock.now()
        with self._running:
            while not self._is_over:
                try:
                    job = self._jobs.get(timeout=None if self._is_idle() else TICK)
                except queue.Empty:
                    job = None
                if job is not None:
                    self._do(job)
                    # It may refer to a lease that nobody else refers to.
                    del job
                now = clock.now()
                if now >= ticked + TICK or now < ticked:
                    ticked = now
                    self._do((self._tick, (now,)))
        self._drain()

    def _drain(self) -> None:
        with self._running:
            while True:
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    return
                if job is not None:
                    self._do(job)

    def _do(self, job: Job) -> None:
        what, args = job
        try:
            what(*args)
        except Exception:
            # One call that fails must not end the leases of the others.
            log.exception("a fault of the client")
