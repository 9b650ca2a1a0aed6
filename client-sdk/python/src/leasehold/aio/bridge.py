"""From the client's thread to an event loop."""

from __future__ import annotations

import asyncio
from typing import Callable, Generic, TypeVar, Union

from leasehold._core.grip import Grip
from leasehold._core.order import Place
from leasehold.errors import Error

T = TypeVar("T")


def soon(loop: asyncio.AbstractEventLoop, what: Callable[..., object], *args: object) -> None:
    """Has the loop do something, if it still runs."""
    try:
        loop.call_soon_threadsafe(what, *args)
    except RuntimeError:
        # It is closed: nobody waits there any more.
        pass


class Once(Generic[T]):
    """One answer, told in any thread and awaited in the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self._loop.create_future()

    def tell(self, result: T) -> None:
        """The answer."""
        soon(self._loop, self._tell, result)

    def _tell(self, result: T) -> None:
        if not self.future.done():
            self.future.set_result(result)


class Reply(Once[Union[Grip, Error]]):
    """What the client's thread says to the task that has called."""

    def __init__(self, on_queue: Callable[[Place], object] | None) -> None:
        super().__init__()
        self._on_queue = on_queue

    def place(self, place: Place) -> None:
        """Where the call stands."""
        if self._on_queue is not None:
            soon(self._loop, self._place, self._on_queue, place)

    def done(self, result: Grip | Error) -> None:
        """What it got."""
        self.tell(result)

    def drop(self) -> None:
        """Nobody takes what it got."""
        if self.future.cancelled() or not self.future.done() or self.future.exception() is not None:
            return
        result = self.future.result()
        if isinstance(result, Grip):
            result.give_back()

    def _place(self, hook: Callable[[Place], object], place: Place) -> None:
        if self.future.done():
            return
        try:
            hook(place)
        except BaseException as error:
            # As if it had been called by the code that waits.
            self.future.set_exception(error)
