"""The client's thread, which runs jobs one after the other, and a periodic check of deadlines."""

from __future__ import annotations

import logging
import queue
import threading
from typing import Any, Callable

from leasehold._core import clock, process
from leasehold.errors import Forked

log = logging.getLogger("leasehold")

#: Interval at which deadlines are checked, in seconds. Timers alone are not enough: none runs through a suspend.
TICK_INTERVAL = 0.05

Job = tuple[Callable[..., object], tuple[Any, ...]]


class Worker:
    """A thread with a queue of jobs.

    The thread starts with the first job, so that a client may be created before a fork and used after it.
    """

    def __init__(self, name: str, on_tick: Callable[[float], None], is_idle: Callable[[], bool]) -> None:
        self._name = name
        self._on_tick = on_tick
        self._is_idle = is_idle
        # Finalizers post jobs, too, and may run at any time in any thread. SimpleQueue.put is reentrant.
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        # Held by the thread that runs jobs: the worker's thread, and after its end the thread that posts a job.
        self._run_lock = threading.RLock()
        self._start_lock = threading.RLock()
        self._generation: int | None = None
        self._is_stopped = False

    @property
    def is_started(self) -> bool:
        """True if the thread was started."""
        return self._generation is not None

    def belongs_to(self, generation: int) -> bool:
        """Returns true if the thread was started in the process with this generation."""
        return self._generation == generation

    def check(self) -> None:
        """Raises Forked in a child of the process that started the thread."""
        if self._generation not in (None, process.generation()):
            raise Forked

    def post(self, function: Callable[..., object], *args: Any) -> None:
        """Enqueues a job, and starts the thread with the first one. Does nothing in a child of a fork."""
        if self._generation is None:
            self._start()
        if self._generation != process.generation():
            return
        self._jobs.put((function, args))
        if self._is_stopped:
            self._drain()

    def stop(self) -> None:
        """Ends the thread after the enqueued jobs. Must be called by a job."""
        self._is_stopped = True
        self._jobs.put(None)

    def _start(self) -> None:
        with self._start_lock:
            if self._generation is None:
                self._generation = process.generation()
                threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        last_tick = clock.now()
        with self._run_lock:
            while not self._is_stopped:
                try:
                    job = self._jobs.get(timeout=None if self._is_idle() else TICK_INTERVAL)
                except queue.Empty:
                    job = None
                if job is not None:
                    self._run_job(job)
                    # The job may have the last reference to a lease, which is released when the reference is dropped.
                    del job
                now = clock.now()
                if now >= last_tick + TICK_INTERVAL or now < last_tick:
                    last_tick = now
                    self._run_job((self._on_tick, (now,)))
        self._drain()

    def _drain(self) -> None:
        with self._run_lock:
            while True:
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    return
                if job is not None:
                    self._run_job(job)

    def _run_job(self, job: Job) -> None:
        function, args = job
        try:
            function(*args)
        except Exception:
            # A job that fails must not end the leases of other calls.
            log.exception("internal error in the client thread")
