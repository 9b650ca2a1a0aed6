"""A client's thread, its streams, and how they end."""

from __future__ import annotations

import atexit
import threading
import weakref
from typing import Any, Callable, Optional, Union

import grpc

from leasehold._core import clock, process, reading
from leasehold._core.endpoint import Brokers
from leasehold._core.keeper import Keeper
from leasehold._core.order import Ask, LockState
from leasehold._core.worker import Worker
from leasehold.errors import Closed, ConnectError, Error, Unavailable, Unreachable
from leasehold.target import LockName
from leasehold.v1 import inspection_service_pb2 as inspection

#: Leases and waits of one stream, as the broker allows.
_STREAM_LEASES_MAX = 1_000
#: How long a shutdown waits for brokers, in seconds.
SHUTDOWN_LIMIT = 2.0

Looked = Callable[[Union[Optional[LockState], Error]], None]


class Handle:
    """What the client and its leases share. The core ends with the last of them."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def __del__(self) -> None:
        self._core.close(lambda: None)


class Core:
    """Everything that begins with an underscore is done by the thread."""

    def __init__(self, brokers: Brokers, release_at_exit: bool) -> None:
        self.brokers = brokers
        self.worker = Worker("leasehold", self._tick, self._is_idle)
        self._keepers: list[Keeper] = []
        self._is_closed = False
        # Keepers that are still ending, and who waits for that.
        self._ending = 0
        self._closers: list[Callable[[], None]] = []
        self._handle: weakref.ref[Handle] | None = None
        if release_at_exit:
            _at_exit(self)

    def handle(self) -> Handle:
        """Keeps the core alive as long as it is kept."""
        handle = self._handle() if self._handle is not None else None
        if handle is None:
            handle = Handle(self)
            self._handle = weakref.ref(handle)
        return handle

    def connect(self, told: Callable[[ConnectError | None], None]) -> None:
        """Tells when a broker answers, or why none does."""
        self.worker.check()
        self.worker.post(self._connect, told)

    def _connect(self, told: Callable[[ConnectError | None], None]) -> None:
        if self._is_closed:
            return told(Unreachable(f"no broker answers: {Closed()}"))
        self._keeper(0).moves.tell_first(told)

    def acquire(self, ask: Ask) -> None:
        """Takes locks, and keeps their lease."""
        self.worker.check()
        self.worker.post(self._acquire, ask)

    def _acquire(self, ask: Ask) -> None:
        if self._is_closed:
            return ask.reply.done(Closed())
        self._keeper(1).waits.ask(ask)

    def cancel(self, request_id: str) -> None:
        """The caller is gone. What it got is given back."""
        self.worker.post(self._cancel, request_id)

    def _cancel(self, request_id: str) -> None:
        for keeper in self._keepers:
            keeper.waits.cancel(request_id)

    def look(self, lock: LockName, told: Looked) -> None:
        """Looks at a lock."""
        self.worker.check()
        self.worker.post(self._look, lock, told)

    def _look(self, lock: LockName, told: Looked) -> None:
        if self._is_closed:
            return told(Closed())
        keeper = self._keeper(0)

        def connected(_: ConnectError | None) -> None:
            self._look_by(keeper, lock, told)

        keeper.moves.tell_first(connected)

    def _look_by(self, keeper: Keeper, lock: LockName, told: Looked) -> None:
        if keeper.link is None:
            return told(Closed() if self._is_closed else Unavailable(keeper.moves.why_not()))
        request = inspection.GetLockRequest(namespace=lock.namespace, name=lock.name)
        try:
            keeper.link.look(request, lambda call: told(_looked(call)))
        except ValueError:
            # The channel was closed a moment ago.
            told(Unavailable("the stream broke"))

    def close(self, done: Callable[[], None], limit: float = SHUTDOWN_LIMIT) -> None:
        """Gives up every wait, releases every lease, and ends."""
        if not self.worker.is_started:
            self._is_closed = True
            return done()
        self.worker.post(self._close, done, clock.now() + limit)

    def _close(self, done: Callable[[], None], by: float) -> None:
        self._closers.append(done)
        if self._is_closed:
            # Perhaps it is under way: the last lease may be forgotten just before the process ends.
            return self._closed()
        # A call that comes now must not make another keeper, which nobody would close.
        self._is_closed = True
        self._ending = len(self._keepers)
        for keeper in list(self._keepers):
            keeper.close(by, self._ended)
        self._closed()

    def _ended(self) -> None:
        self._ending -= 1
        self._closed()

    def _closed(self) -> None:
        if self._ending > 0:
            return
        self.worker.stop()
        closers, self._closers = self._closers, []
        for done in closers:
            done()

    def _keeper(self, more: int) -> Keeper:
        """One with room for so many leases or waits more."""
        for keeper in self._keepers:
            if keeper.load() + more <= _STREAM_LEASES_MAX:
                return keeper
        keeper = Keeper(self)
        self._keepers.append(keeper)
        return keeper

    def _tick(self, now: float) -> None:
        for keeper in self._keepers:
            keeper.tick(now)

    def _is_idle(self) -> bool:
        return all(keeper.is_idle() for keeper in self._keepers)


def _looked(call: Any) -> LockState | Error | None:
    if call.cancelled():
        return Unavailable("the stream broke")
    error = call.exception()
    if isinstance(error, grpc.RpcError):
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return None
        return reading.refused(reading.status(error))
    lock = call.result().lock
    holders = [reading.holder(one) for one in lock.holders]
    return LockState(holders, lock.queue_length, lock.last_fencing_token)


_exiting: weakref.WeakSet[Core] = weakref.WeakSet()
_is_registered = False


def _at_exit(core: Core) -> None:
    global _is_registered
    if not _is_registered:
        _is_registered = True
        atexit.register(_release_all)
    _exiting.add(core)


def _release_all() -> None:
    """Gives everything back at the end of the process: the next in line need not wait for the ttl."""
    generation = process.generation()
    ended = []
    for core in list(_exiting):
        if core.worker.belongs_to(generation):
            done = threading.Event()
            ended.append(done)
            core.close(done.set)
    by = clock.now() + SHUTDOWN_LIMIT
    for done in ended:
        done.wait(max(0.0, by - clock.now()))
