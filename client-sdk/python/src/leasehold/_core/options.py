"""How a lock is taken: what a caller may say besides its name."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Callable, Protocol, TypedDict, Union

from leasehold._core import telemetry
from leasehold._core.order import Ask, Call, LockState, Place, Reply
from leasehold.errors import ConnectError, Error, Forked, Invalid
from leasehold.target import LockName, Target, TargetLike, target
from leasehold.v1 import types_pb2 as types

if TYPE_CHECKING:
    from leasehold._core.view import LeaseView

#: Seconds, or a timedelta.
Time = Union[float, timedelta]
#: How long acquire waits in line unless told otherwise.
WAIT_DEFAULT = 30.0
#: The longest wait that a broker allows; a longer one is several of these.
WAIT_MAX = 3_600.0


class Options(TypedDict, total=False):
    """What lock, lock_all, acquire, try_lock and locked take besides the lock."""

    #: How long the lock can be trusted after each heartbeat, and so how long others wait when this
    #: process dies. 1 s to 60 s unless the broker says otherwise; default 10 s.
    ttl: Time
    #: How long acquire waits in line; default 30 s. ``math.inf``: for ever. After each hour the place in line
    #: begins again at its end.
    wait: Time
    #: Why the lock is taken, for whoever finds it held. At most 512 bytes.
    reason: str
    #: For lists and logs; at most 16.
    labels: Mapping[str, str]
    #: As in Target, for all locks of the call.
    namespace: str
    shared: bool
    permits: int
    limit: int
    #: The longest the lock may be held in all; then it is lost with MAX_HOLD.
    max_hold: Time
    #: Keeps the lock closed for so long after an expiry or revocation, at most 60 s; for resources that cannot
    #: check fencing tokens.
    lock_delay: Time
    #: Frees the lock so long after this client's stream broke, even if this process may still trust it: faster
    #: after a crash, but a holder behind a broken network may overlap with the next one.
    disconnect_grace: Time
    #: Adds the lock to this lease, or enters a lock once more that the lease has. Both are lost together; each
    #: gives back what it took itself.
    under: LeaseView
    #: Called with the place in line, at first and when it changes, at most once a second, by whoever waits.
    on_queue: Callable[[Place], object]
    #: Called with the lease when it is lost: in a thread of its own, or by the event loop.
    on_lost: Callable[[Any], object]


class Backend(Protocol):
    """A broker, as clients see it: over the network, or a fake one. Nothing here blocks."""

    def handle(self) -> object:
        """Keeps it alive as long as it is kept."""

    def connect(self, told: Callable[[ConnectError | None], None]) -> None:
        """Tells when a broker answers, or why none does."""

    def acquire(self, ask: Ask) -> None:
        """Takes locks, and keeps their lease."""

    def cancel(self, request_id: str) -> None:
        """The caller is gone. What it got is given back."""

    def look(self, lock: LockName, told: Callable[[LockState | Error | None], None]) -> None:
        """Looks at a lock."""

    def close(self, done: Callable[[], None], limit: float = ...) -> None:
        """Gives up every wait, releases every lease, and ends."""


class Caller(Protocol):
    """Where acquires go: a backend, or whoever keeps the lease that they are under."""

    def acquire(self, ask: Ask) -> None:
        """Takes locks, and keeps their lease."""

    def cancel(self, request_id: str) -> None:
        """The caller is gone. What it got is given back."""


def seconds(time: Time) -> float:
    """A span of time in seconds."""
    value = time.total_seconds() if isinstance(time, timedelta) else float(time)
    if math.isnan(value) or value < 0:
        raise ValueError(f"not a span of time: {time!r}")
    return value


class Plan:
    """One or several locks about to be taken, as often as wanted."""

    def __init__(self, backend: Backend, owner: str, targets: Iterable[TargetLike], options: Options) -> None:
        unknown = set(options) - set(Options.__annotations__)
        if unknown:
            raise TypeError(f"no such option: {', '.join(sorted(unknown))}")
        self._backend = backend
        self.targets = tuple(_with_options(target(one), options) for one in targets)
        if not self.targets:
            raise Invalid("no lock is named")
        self.wait = seconds(options.get("wait", WAIT_DEFAULT))
        self.on_queue = options.get("on_queue")
        self.on_lost = options.get("on_lost")
        self._under = options["under"].grip if "under" in options else None
        reason, labels = options.get("reason", ""), options.get("labels", {})
        self._owner = types.Owner(id=owner, reason=reason, labels=labels)
        times = ("ttl", "max_hold", "lock_delay", "disconnect_grace")
        given: Mapping[str, Any] = options
        self._times = {name: seconds(given[name]) for name in times if name in given}

        # What cannot be sent fails here, and not in the client's thread.
        self._call("").message(0.0, None)

    def caller(self) -> Caller:
        """Where its calls go."""
        if self._under is None:
            return self._backend
        if self._under.is_foreign:
            raise Forked
        return self._under.orders

    def ask(self, wait: float, reply: Reply) -> Ask:
        """One call with a request id of its own."""
        return Ask(self._call(str(uuid.uuid4())), wait, reply, self._under)

    def _call(self, request_id: str) -> Call:
        return Call(
            targets=tuple(one.proto() for one in self.targets),
            owner=self._owner,
            request_id=request_id,
            traceparent=telemetry.traceparent(),
            **self._times,
        )

    def names(self) -> list[str]:
        """The locks, for people."""
        return [str(one.lock) for one in self.targets]

    def __str__(self) -> str:
        return ", ".join(self.names())


def _with_options(one: Target, options: Options) -> Target:
    shared = options.get("shared", one.shared)
    permits = options.get("permits", one.permits)
    limit = options.get("limit", one.limit)
    namespace = options.get("namespace", one.namespace)
    return Target(one.name, namespace, shared, permits, limit)
