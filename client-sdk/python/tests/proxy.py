"""A TCP proxy in front of a broker, which breaks connections, drops or delays data, and rejects connections."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import threading
from typing import Callable


class Direction(enum.Flag):
    """Direction of the data that is dropped."""

    TO_BROKER = enum.auto()
    TO_CLIENT = enum.auto()
    BOTH = TO_BROKER | TO_CLIENT


class Proxy:
    """A proxy that runs in a separate thread until it is stopped."""

    def __init__(self, broker: str) -> None:
        host, port = broker.split(":")
        self._broker = (host, int(port))
        self._dropped_directions = Direction(0)
        self._delay = 0.0
        self._rejects_connections = False
        self._dropped_bytes = 0
        self._opened_connections = 0
        self._changed = threading.Condition()
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        start = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(start, self._loop).result(5)
        self.addr = "127.0.0.1:{1}".format(*self._server.sockets[0].getsockname())

    @property
    def url(self) -> str:
        """Endpoint of the proxy."""
        return f"http://{self.addr}"

    def drop(self, directions: Direction) -> None:
        """Drops data in the given directions while connections stay open."""
        self._dropped_directions = directions

    def delay(self, seconds: float) -> None:
        """Delays data from the broker by this time."""
        self._delay = seconds

    def reject_connections(self, rejects: bool = True) -> None:
        """Closes new connections at once."""
        self._rejects_connections = rejects

    def break_connections(self) -> int:
        """Breaks all connections and returns their number."""

        async def break_connections() -> int:
            writers = list(self._writers)
            for writer in writers:
                writer.transport.abort()
            return len(writers) // 2

        return asyncio.run_coroutine_threadsafe(break_connections(), self._loop).result(5)

    @property
    def dropped_bytes(self) -> int:
        """Number of dropped bytes."""
        return self._dropped_bytes

    @property
    def opened_connections(self) -> int:
        """Number of connections that were opened."""
        return self._opened_connections

    def wait_for(self, condition: Callable[[], bool], timeout: float = 10.0) -> None:
        """Waits until the condition on the state of the proxy is true."""
        with self._changed:
            assert self._changed.wait_for(condition, timeout), "the condition did not become true"

    def stop(self) -> None:
        """Stops the proxy."""

        async def end() -> None:
            self._server.close()
            for writer in list(self._writers):
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
        self._record(opened=1)
        if self._rejects_connections:
            writer.transport.abort()
            return
        try:
            broker_reader, broker_writer = await asyncio.open_connection(*self._broker)
        except OSError:
            writer.transport.abort()
            return
        writers = (writer, broker_writer)
        self._writers.update(writers)
        try:
            copies = (
                self._pump(reader, broker_writer, Direction.TO_BROKER),
                self._pump(broker_reader, writer, Direction.TO_CLIENT),
            )
            await asyncio.gather(*copies)
        except (OSError, asyncio.CancelledError):
            # The connection was broken, or the proxy was stopped.
            pass
        finally:
            for open_writer in writers:
                open_writer.transport.abort()
            self._writers.difference_update(writers)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        delayed: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sender = asyncio.ensure_future(self._send(delayed, writer))
        try:
            while data := await reader.read(65536):
                if direction & self._dropped_directions:
                    self._record(dropped=len(data))
                    continue
                delay = self._delay if direction is Direction.TO_CLIENT else 0.0
                delayed.put_nowait((self._loop.time() + delay, data))
            if not self._dropped_directions:
                raise ConnectionResetError
        finally:
            sender.cancel()

    async def _send(self, delayed: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                send_at, data = await delayed.get()
                await asyncio.sleep(max(0.0, send_at - self._loop.time()))
                writer.write(data)
                await writer.drain()

    def _record(self, dropped: int = 0, opened: int = 0) -> None:
        with self._changed:
            self._dropped_bytes += dropped
            self._opened_connections += opened
            self._changed.notify_all()
