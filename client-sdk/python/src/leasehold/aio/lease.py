"""A lock that is held, for asyncio."""

from __future__ import annotations

import asyncio
import logging
import weakref
from types import TracebackType
from typing import Any, Callable

from leasehold._core import held
from leasehold._core.grip import Grip
from leasehold._core.view import LeaseView, LossHook
from leasehold.aio.bridge import Once, soon
from leasehold.errors import Error, Forked, LeaseLost, Loss, LostReason

log = logging.getLogger("leasehold")

#: How often a wait for the loss looks at the time: no timer runs through a suspend.
_LOOK_EVERY = 0.1


class Lease(LeaseView):
    """A lock that is held, or several under one lease, by an asyncio program.

    The client sends heartbeats for it until it is released or lost, in a thread that the program cannot block. An
    ``async with`` block releases it, and is left with LeaseLost when the lock is lost: its task is cancelled at its
    next await. Without a block, call ``release``. A lease that nobody refers to any more is given back.
    """

    def __init__(self, grip: Grip, on_lost: Callable[[Lease], object] | None = None) -> None:
        super().__init__(grip)
        self.lost = Lost(self)
        self._stay: _Stay | None = None
        if on_lost is not None:
            _Told(self, on_lost)

    async def release(self) -> None:
        """Gives the lock back and waits until the broker has confirmed it. Safe to repeat; also given back if the
        call is cancelled. For a lease that was made ``under`` another one, and for that one, this gives back only
        what the call itself took.

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
        answer: Once[Error | None] = Once()
        if not self.grip.give_back(answer.tell):
            return
        error = await answer.future
        if isinstance(error, LeaseLost):
            raise LeaseLost(self.grip.trust.loss() or error.loss)
        if error is not None:
            raise error

    async def __aenter__(self) -> Lease:
        held.enter(self)
        self._stay = _Stay(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        held.leave(self)
        stay, self._stay = self._stay, None
        if stay is not None and stay.end(kind):
            self.grip.give_back()
            loss = self.grip.trust.loss() or Loss(LostReason.EXPIRED)
            raise LeaseLost(loss) from error
        if kind is None:
            await self.release()
        elif not issubclass(kind, Exception):
            # A task that is cancelled does not wait for the broker.
            self.grip.give_back()
        else:
            try:
                await self.release()
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

    async def wait(self) -> LostReason:
        """Waits until it is over; why."""
        ended: Once[None] = Once()
        trust = self._view.grip.trust

        def tell() -> None:
            ended.tell(None)

        trust.on_end(tell)
        try:
            while True:
                loss = self._view.loss
                if loss is not None:
                    return loss.reason
                await asyncio.wait([ended.future], timeout=_LOOK_EVERY)
        finally:
            trust.off_end(tell)


class _Told(LossHook):
    def __init__(self, lease: Lease, on_lost: Callable[[Lease], object]) -> None:
        self._lease = weakref.ref(lease)
        self._call = on_lost
        self._loop = asyncio.get_running_loop()
        super().__init__(lease)

    def tell(self) -> None:
        lease = self._lease()
        if lease is not None:
            soon(self._loop, self._call, lease)


class _Stay(LossHook):
    """The time that a task spends in a block: a loss cancels it, in the way of asyncio.timeout."""

    def __init__(self, lease: LeaseView) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a lease is entered by a task")
        # Not the task itself: it may be dropped in the block, and the lease with it.
        self._task: weakref.ref[asyncio.Task[Any]] = weakref.ref(task)
        self._cancelling = _cancelling(task)
        self._is_over = False
        self._has_cancelled = False
        super().__init__(lease)

    def tell(self) -> None:
        soon(self._loop, self._cancel)

    def end(self, kind: type[BaseException] | None) -> bool:
        """The block is left; whether that is because its lock was lost, and for no other reason."""
        self._is_over = True
        self.off()
        task = self._task()
        if not self._has_cancelled or task is None:
            return False
        is_cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
        return _uncancel(task) <= self._cancelling and is_cancelled

    def _cancel(self) -> None:
        task = self._task()
        if not self._is_over and task is not None:
            self._has_cancelled = True
            task.cancel("the lock was lost")


def _cancelling(task: asyncio.Task[Any]) -> int:
    # From Python 3.11 on a task counts who has cancelled it.
    count = getattr(task, "cancelling", None)
    return int(count()) if count is not None else 0


def _uncancel(task: asyncio.Task[Any]) -> int:
    count = getattr(task, "uncancel", None)
    return int(count()) if count is not None else 0
