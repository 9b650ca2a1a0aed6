"""Replies of the client's thread to an event loop."""

from __future__ import annotations

import asyncio
from typing import Callable, Generic, TypeVar, Union

from leasehold._core.command import QueuePosition
from leasehold._core.lease_handle import LeaseHandle
from leasehold.errors import Error

T = TypeVar("T")


def call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> None:
    """Schedules a call on the loop from any thread. Does nothing if the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        # The loop is closed, so no task waits for the call.
        pass


class ThreadSafeFuture(Generic[T]):
    """A single result, which any thread sets and the loop awaits."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self._loop.create_future()

    def set_result(self, result: T) -> None:
        """Sets the result. Later results are ignored."""
        call_soon(self._loop, self._set_result, result)

    def _set_result(self, result: T) -> None:
        if not self.future.done():
            self.future.set_result(result)


class LoopReceiver(ThreadSafeFuture[Union[LeaseHandle, Error]]):
    """A receiver of the result and the queue positions of one acquire, for the task that called it."""

    def __init__(self, on_queue: Callable[[QueuePosition], object] | None) -> None:
        super().__init__()
        self._on_queue = on_queue

    def on_queue_position(self, position: QueuePosition) -> None:
        """Passes the queue position to the ``on_queue`` hook."""
        if self._on_queue is not None:
            call_soon(self._loop, self._notify_position, self._on_queue, position)

    def on_result(self, result: LeaseHandle | Error) -> None:
        """Sets the result of the call."""
        self.set_result(result)

    def release_undelivered(self) -> None:
        """Releases a granted lock that the calling task does not receive."""
        if self.future.cancelled() or not self.future.done() or self.future.exception() is not None:
            return
        result = self.future.result()
        if isinstance(result, LeaseHandle):
            result.release()

    def _notify_position(self, hook: Callable[[QueuePosition], object], position: QueuePosition) -> None:
        if self.future.done():
            return
        try:
            hook(position)
        except BaseException as error:
            # The waiting code raises the hook's error, as if it had called the hook.
            self.future.set_exception(error)
