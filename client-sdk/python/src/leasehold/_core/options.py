"""Options of an acquire, and the backend that executes it."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Callable, Protocol, TypedDict, Union

from leasehold._core import telemetry
from leasehold._core.command import AcquireCommand, AcquireParams, AcquireReceiver, LockState, QueuePosition
from leasehold.errors import ConnectError, Error, Forked, Invalid
from leasehold.target import LockName, Target, TargetLike, target
from leasehold.v1 import types_pb2 as types

if TYPE_CHECKING:
    from leasehold._core.view import LeaseView

#: A duration in seconds, or as a timedelta.
Duration = Union[float, timedelta]
#: Default time for which ``acquire`` waits in the queue, in seconds.
WAIT_DEFAULT = 30.0
#: Longest wait that a broker allows, in seconds. A longer wait is split.
WAIT_MAX = 3_600.0


class Options(TypedDict, total=False):
    """Keyword arguments of ``lock``, ``lock_all``, ``acquire``, ``try_lock`` and ``locked``."""

    #: Time for which the lock stays valid after each heartbeat, and so the time that others wait if this process
    #: dies. 1 s to 60 s unless the broker is configured otherwise; default 10 s.
    ttl: Duration
    #: Time for which an acquire waits in the queue; default 30 s, ``math.inf`` without limit. A longer wait than an
    #: hour enters the queue again at its end after each hour.
    wait: Duration
    #: Reason for the lock, for callers and operators that find it held. At most 512 bytes.
    reason: str
    #: Labels for lists and logs; at most 16.
    labels: Mapping[str, str]
    #: Fields of Target with the same names, for all locks of the call.
    namespace: str
    shared: bool
    permits: int
    limit: int
    #: Longest time for which the lock may be held in all. Then it is lost with MAX_HOLD.
    max_hold: Duration
    #: Time for which the lock grants nothing after an expiry or revocation, at most 60 s. For resources that cannot
    #: check fencing tokens.
    lock_delay: Duration
    #: Time after which the lock is released when this client's stream breaks, even if the lease is still valid. Frees
    #: the lock sooner after a crash, but a holder behind a broken network may overlap with the next one.
    disconnect_grace: Duration
    #: Time after the grant until which the lock stays closed, however the lease ends: for jobs that run once a period.
    #: Not shorter than the validity; the broker allows at most a day by default. A job that died is not run again
    #: within the period, unless an operator opens the lock.
    at_least: Duration
    #: Lease to add the lock to, or to enter a lock again that this lease already has. Both leases are lost together.
    #: Each of them releases what its own call acquired.
    under: LeaseView
    #: Called with the queue position, initially and after changes, at most once a second: in the waiting thread, or by
    #: the event loop.
    on_queue: Callable[[QueuePosition], object]
    #: Called with the lease when the lease is lost: in a separate thread, or by the event loop.
    on_lost: Callable[[Any], object]


class Backend(Protocol):
    """The operations of a client, executed by brokers on the network or by a fake broker. No method blocks."""

    def reference(self) -> object:
        """Returns a reference that keeps the backend alive."""

    def connect(self, callback: Callable[[ConnectError | None], None]) -> None:
        """Calls the callback with None once a broker responds, or with the reason for which none does."""

    def acquire(self, command: AcquireCommand) -> None:
        """Acquires locks and keeps their lease."""

    def cancel(self, request_id: str) -> None:
        """Cancels an acquire whose caller no longer waits. A granted lock is released."""

    def get_lock_state(self, lock: LockName, callback: Callable[[LockState | Error | None], None]) -> None:
        """Reads the state of a lock and passes it to the callback.

        The callback receives None if the lock has no state, or an error.
        """

    def set_limit(self, lock: LockName, limit: int | None, callback: Callable[[int | Error | None], None]) -> None:
        """Sets the limit of a lock, or removes it if ``limit`` is None, and passes the previous limit to the callback.

        The callback receives None if there was no limit, or an error.
        """

    def close(self, callback: Callable[[], None], timeout: float = ...) -> None:
        """Cancels every wait, releases every lease, and closes the backend. Calls the callback at the end."""


class AcquireSender(Protocol):
    """The sender of acquires to a backend, or to the session of the lease given as ``under``."""

    def acquire(self, command: AcquireCommand) -> None:
        """Acquires locks and keeps their lease."""

    def cancel(self, request_id: str) -> None:
        """Cancels an acquire whose caller no longer waits. A granted lock is released."""


def to_seconds(duration: Duration) -> float:
    """Converts a duration to seconds. Raises ValueError if it is negative or not a number."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if math.isnan(seconds) or seconds < 0:
        raise ValueError(f"invalid duration {duration!r}: expected seconds or a timedelta, not negative")
    return seconds


class AcquireTemplate:
    """The checked targets and options of a Lock, from which each acquire is created."""

    def __init__(self, backend: Backend, owner: str, targets: Iterable[TargetLike], options: Options) -> None:
        unknown = set(options) - set(Options.__annotations__)
        if unknown:
            raise TypeError(f"unknown option: {', '.join(sorted(unknown))}")
        self._backend = backend
        self.targets = tuple(_with_options(target(target_like), options) for target_like in targets)
        if not self.targets:
            raise Invalid("no lock to acquire: name at least one")
        self.wait = to_seconds(options.get("wait", WAIT_DEFAULT))
        self.on_queue = options.get("on_queue")
        self.on_lost = options.get("on_lost")
        self._under = options["under"].handle if "under" in options else None
        reason, labels = options.get("reason", ""), options.get("labels", {})
        self._owner = types.Owner(id=owner, reason=reason, labels=labels)
        duration_names = ("ttl", "max_hold", "lock_delay", "disconnect_grace", "at_least")
        values: Mapping[str, Any] = options
        self._durations = {name: to_seconds(values[name]) for name in duration_names if name in values}

        # Builds a message once, so that values that cannot be encoded fail here and not in the client's thread.
        self._params("").to_message(0.0, None)

    def sender(self) -> AcquireSender:
        """Returns the sender of the acquires."""
        if self._under is None:
            return self._backend
        if self._under.is_forked:
            raise Forked
        return self._under.commands

    def command(self, wait: float, receiver: AcquireReceiver) -> AcquireCommand:
        """Creates an acquire command with a new request id."""
        return AcquireCommand(self._params(str(uuid.uuid4())), wait, receiver, self._under)

    def _params(self, request_id: str) -> AcquireParams:
        return AcquireParams(
            targets=tuple(lock_target.proto() for lock_target in self.targets),
            owner=self._owner,
            request_id=request_id,
            traceparent=telemetry.traceparent(),
            **self._durations,
        )

    def names(self) -> list[str]:
        """Returns the names of the locks, as ``namespace/name``."""
        return [str(lock_target.lock) for lock_target in self.targets]

    def __str__(self) -> str:
        return ", ".join(self.names())


def _with_options(base: Target, options: Options) -> Target:
    shared = options.get("shared", base.shared)
    permits = options.get("permits", base.permits)
    limit = options.get("limit", base.limit)
    namespace = options.get("namespace", base.namespace)
    return Target(base.name, namespace, shared, permits, limit)
