"""Leases of held locks, for asyncio."""

from __future__ import annotations

import asyncio
import logging
import weakref
from types import TracebackType
from typing import Any, Callable

from leasehold._core import current_leases
from leasehold._core.lease_handle import LeaseHandle
from leasehold._core.view import LeaseView, LossHook
from leasehold.aio.bridge import ThreadSafeFuture, call_soon
from leasehold.errors import Error, Forked, LeaseLost, Loss, LostReason

log = logging.getLogger("leasehold")

#: Interval at which ``Lost.wait`` reads the clock, in seconds. One timer is not enough: none runs through a suspend.
_CHECK_INTERVAL = 0.1


class Lease(LeaseView):
    """A lock that is held, or several locks under one lease, in an asyncio program.

    The client renews the lease until the lease is released or lost, in a thread that the program cannot block. An
    ``async with`` block releases the lease at its end. When the lock is lost, the task in the block is cancelled at its
    next await, and the block raises LeaseLost. Without a block, call ``release``. An unreferenced lease is released,
    with a ResourceWarning.
    """

    def __init__(self, handle: LeaseHandle, on_lost: Callable[[Lease], object] | None = None) -> None:
        super().__init__(handle)
        self.lost = Lost(self)
        self._cancellation: _TaskCancellation | None = None
        if on_lost is not None:
            _LostCallback(self, on_lost)

    async def release(self) -> None:
        """Releases the lock and waits until the broker has confirmed the release.

        The lock is released even if the call is cancelled. Repeated calls have no effect. If the lease was shared with
        ``under``, each of the leases releases only the locks that its own call acquired.

        Raises LeaseLost if the lock was lost before: the protected work may have overlapped with the work of another
        holder. Raises Unconfirmed if no broker confirmed the release before the lease expired, and Refused if a broker
        rejected the release.
        """
        if self.handle.is_forked:
            raise Forked
        loss = self.handle.validity.loss()
        if loss is not None:
            if self.handle.release():
                raise LeaseLost(loss)
            return
        result: ThreadSafeFuture[Error | None] = ThreadSafeFuture()
        if not self.handle.release(result.set_result):
            return
        error = await result.future
        if isinstance(error, LeaseLost):
            raise LeaseLost(self.handle.validity.loss() or error.loss)
        if error is not None:
            raise error

    async def __aenter__(self) -> Lease:
        current_leases.push(self)
        self._cancellation = _TaskCancellation(self)
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        current_leases.remove(self)
        cancellation, self._cancellation = self._cancellation, None
        if cancellation is not None and cancellation.end(error_type):
            self.handle.release()
            loss = self.handle.validity.loss() or Loss(LostReason.EXPIRED)
            raise LeaseLost(loss) from error
        if error_type is None:
            await self.release()
        elif not issubclass(error_type, Exception):
            # After a cancellation the block ends without waiting for the broker.
            self.handle.release()
        else:
            try:
                await self.release()
            except Error as release_error:
                log.warning("lease %s, after an exception: %s", self.lease_id, release_error)


class Lost:
    """The loss of a lease: true, permanently, once the lease is lost or released."""

    def __init__(self, lease: LeaseView) -> None:
        # Without a reference to the lease: a cycle of references would delay the release of an unreferenced lease.
        self._view = LeaseView(lease.handle)

    def __bool__(self) -> bool:
        return self._view.loss is not None

    def is_set(self) -> bool:
        """Returns true if the lease has ended."""
        return bool(self)

    @property
    def loss(self) -> Loss | None:
        """The reason for which the lease has ended, with the broker's message, or None while it is valid."""
        return self._view.loss

    @property
    def reason(self) -> LostReason | None:
        """The reason for which the lease has ended, or None while it is valid."""
        return self._view.lost_reason

    async def wait(self) -> LostReason:
        """Waits until the lease has ended and returns the reason."""
        ended: ThreadSafeFuture[None] = ThreadSafeFuture()
        validity = self._view.handle.validity

        def set_ended() -> None:
            ended.set_result(None)

        validity.add_end_hook(set_ended)
        try:
            while True:
                loss = self._view.loss
                if loss is not None:
                    return loss.reason
                await asyncio.wait([ended.future], timeout=_CHECK_INTERVAL)
        finally:
            validity.remove_end_hook(set_ended)


class _LostCallback(LossHook):
    def __init__(self, lease: Lease, on_lost: Callable[[Lease], object]) -> None:
        self._lease = weakref.ref(lease)
        self._callback = on_lost
        self._loop = asyncio.get_running_loop()
        super().__init__(lease)

    def on_loss(self) -> None:
        lease = self._lease()
        if lease is not None:
            call_soon(self._loop, self._callback, lease)


class _TaskCancellation(LossHook):
    """A hook that cancels the task in a block when the lock is lost, in the manner of ``asyncio.timeout``."""

    def __init__(self, lease: LeaseView) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a lease can be entered only in a task")
        # A weak reference, so that a task that is dropped in its block is collected together with its lease.
        self._task: weakref.ref[asyncio.Task[Any]] = weakref.ref(task)
        self._cancellations_before = _cancellation_count(task)
        self._has_ended = False
        self._has_cancelled = False
        super().__init__(lease)

    def on_loss(self) -> None:
        call_soon(self._loop, self._cancel)

    def end(self, error_type: type[BaseException] | None) -> bool:
        """Ends the hook when the block ends. Returns true if the loss of the lock is the only reason for the end."""
        self._has_ended = True
        self.remove()
        task = self._task()
        if not self._has_cancelled or task is None:
            return False
        is_cancelled = error_type is not None and issubclass(error_type, asyncio.CancelledError)
        return _uncancel(task) <= self._cancellations_before and is_cancelled

    def _cancel(self) -> None:
        task = self._task()
        if not self._has_ended and task is not None:
            self._has_cancelled = True
            task.cancel("the lock was lost")


def _cancellation_count(task: asyncio.Task[Any]) -> int:
    # From Python 3.11 on, a task counts its cancellations.
    count = getattr(task, "cancelling", None)
    return int(count()) if count is not None else 0


def _uncancel(task: asyncio.Task[Any]) -> int:
    count = getattr(task, "uncancel", None)
    return int(count()) if count is not None else 0
