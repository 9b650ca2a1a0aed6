"""A TCP proxy before a broker: it cuts, swallows, delays and refuses."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import threading
from typing import Callable


class Way(enum.Flag):
    """Which packets are meant."""

    TO_BROKER = enum.auto()
    TO_CLIENT = enum.auto()
    BOTH = TO_BROKER | TO_CLIENT


class Proxy:
    """Serves on a thread of its own until stopped."""

    def __init__(self, broker: str) -> None:
        host, port = broker.split(":")
        self._broker = (host, int(port))
        self._swallowed = Way(0)
        self._delay = 0.0
        self._refuses = False
        self._lost = 0
        self._opened = 0
        self._changed = threading.Condition()
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        serves = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(serves, self._loop).result(5)
        self.addr = "127.0.0.1:{1}".format(*self._server.sockets[0].getsockname())

    @property
    def url(self) -> str:
        """As an endpoint."""
        return f"http://{self.addr}"

    def swallow(self, way: Way) -> None:
        """Loses what is sent that way, while connections stay open."""
        self._swallowed = way

    def delay(self, seconds: float) -> None:
        """Keeps what the broker says for so long."""
        self._delay = seconds

    def refuse(self, refuses: bool = True) -> None:
        """Closes new connections at once."""
        self._refuses = refuses

    def cut(self) -> int:
        """Breaks every connection; how many."""

        async def cut() -> int:
            writers = list(self._open)
            for writer in writers:
                writer.transport.abort()
            return len(writers) // 2

        return asyncio.run_coroutine_threadsafe(cut(), self._loop).result(5)

    @property
    def lost(self) -> int:
        """How many bytes were swallowed."""
        return self._lost

    @property
    def opened(self) -> int:
        """How many connections were opened."""
        return self._opened

    def wait_for(self, condition: Callable[[], bool], timeout: float = 10.0) -> None:
        """Waits until something has happened here."""
        with self._changed:
            assert self._changed.wait_for(condition, timeout), "it did not happen"

    def stop(self) -> None:
        """Ends it."""

        async def end() -> None:
            self._server.close()
            for writer in list(self._open):
                writer.transport.abort()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._note(opened=1)
        if self._refuses:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._broker)
        except OSError:
            writer.transport.abort()
            return
        both = (writer, far_writer)
        self._open.update(both)
        try:
            pumps = (self._pump(reader, far_writer, Way.TO_BROKER), self._pump(far_reader, writer, Way.TO_CLIENT))
            await asyncio.gather(*pumps)
        except (OSError, asyncio.CancelledError):
            # Cut, or the proxy is stopped.
            pass
        finally:
            for one in both:
                one.transport.abort()
            self._open.difference_update(both)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sender = asyncio.ensure_future(self._send(late, writer))
        try:
            while data := await reader.read(65536):
                if way & self._swallowed:
                    self._note(lost=len(data))
                    continue
                delay = self._delay if way is Way.TO_CLIENT else 0.0
                late.put_nowait((self._loop.time() + delay, data))
            if not self._swallowed:
                raise ConnectionResetError
        finally:
            sender.cancel()

    async def _send(self, late: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                at, data = await late.get()
                await asyncio.sleep(max(0.0, at - self._loop.time()))
                writer.write(data)
                await writer.drain()

    def _note(self, lost: int = 0, opened: int = 0) -> None:
        with self._changed:
            self._lost += lost
            self._opened += opened
            self._changed.notify_all()
