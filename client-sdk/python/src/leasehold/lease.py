"""A lock that is held, for threads."""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from types import TracebackType
from typing import Callable

from leasehold._core import held
from leasehold._core.grip import Grip
from leasehold._core.view import LeaseView, LossHook
from leasehold.errors import Error, Forked, LeaseLost, Loss, LostReason

log = logging.getLogger("leasehold")

#: How often a waiting look at the loss looks at the time: no timer runs through a suspend.
_LOOK_EVERY = 0.1


class Lease(LeaseView):
    """A lock that is held, or several under one lease, by a program of threads.

    The client sends heartbeats for it until it is released or lost, in a thread that the program cannot block. A
    ``with`` block releases it; without one, call ``release``. A lease that nobody refers to any more is given back.

    A thread cannot be stopped from outside: call ``check`` before each step that needs the lock, or look at
    ``lost``, or have ``on_lost`` stop the work.
    """

    def __init__(self, grip: Grip, on_lost: Callable[[Lease], object] | None = None) -> None:
        super().__init__(grip)
        self.lost = Lost(self)
        if on_lost is not None:
            _Told(self, on_lost)

    def release(self) -> None:
        """Gives the lock back and waits until the broker has confirmed it. Safe to repeat. For a lease that was
        made ``under`` another one, and for that one, this gives back only what the call itself took.

        Raises LeaseLost if the lock was lost before: what it guarded may have overlapped with another holder's
        work. Unconfirmed: no broker could be reached meanwhile.
        """
        if self.grip.is_foreign:
            raise Forked
        loss = self.grip.trust.loss()
        if loss is not None:
            if self.grip.give_back():
                raise LeaseLost(loss)
            return
        answers: queue.SimpleQueue[Error | None] = queue.SimpleQueue()
        if not self.grip.give_back(answers.put):
            return
        error = answers.get()
        if isinstance(error, LeaseLost):
            raise LeaseLost(self.grip.trust.loss() or error.loss)
        if error is not None:
            raise error

    def __enter__(self) -> Lease:
        held.enter(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        held.leave(self)
        if kind is None:
            self.release()
        elif not issubclass(kind, Exception):
            # An interrupt does not wait for the broker.
            self.grip.give_back()
        else:
            try:
                self.release()
            except Error as why:
                log.warning("lease %s, after an exception: %s", self.lease_id, why)


class Lost:
    """Whether and why a lease is not held any more. Latches."""

    def __init__(self, lease: LeaseView) -> None:
        # Not the lease: that gives itself back when nobody refers to it.
        self._view = LeaseView(lease.grip)

    def __bool__(self) -> bool:
        return self._view.loss is not None

    def is_set(self) -> bool:
        """Whether it is over."""
        return bool(self)

    @property
    def loss(self) -> Loss | None:
        """Why, with what the broker said."""
        return self._view.loss

    @property
    def reason(self) -> LostReason | None:
        """Why."""
        return self._view.lost_reason

    def wait(self, timeout: float | None = None) -> LostReason | None:
        """Waits until it is over, at most so many seconds; why, or None if it is not over by then."""
        ended = threading.Event()
        trust = self._view.grip.trust
        trust.on_end(ended.set)
        try:
            left = timeout
            while self._view.loss is None and (left is None or left > 0):
                pause = _LOOK_EVERY if left is None else min(_LOOK_EVERY, left)
                ended.wait(pause)
                left = None if left is None else left - pause
            return self.reason
        finally:
            trust.off_end(ended.set)


class _Told(LossHook):
    def __init__(self, lease: Lease, on_lost: Callable[[Lease], object]) -> None:
        self._lease = weakref.ref(lease)
        self._call = on_lost
        super().__init__(lease)

    def tell(self) -> None:
        lease = self._lease()
        if lease is not None:
            # In a thread of its own: it may block, and heartbeats must not wait for it.
            threading.Thread(target=self._call, args=(lease,), name="leasehold-lost", daemon=True).start()
