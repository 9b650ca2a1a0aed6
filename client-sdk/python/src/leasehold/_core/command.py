"""Commands from clients and leases to the client's thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable, Optional, Protocol, Union

from leasehold._core.convert import to_duration
from leasehold.errors import Closure, Error, Holder, StoreRecovery
from leasehold.target import LockName, lock_of
from leasehold.v1 import lock_service_pb2 as pb
from leasehold.v1 import types_pb2 as types

if TYPE_CHECKING:
    from leasehold._core.lease_handle import LeaseHandle

#: A callback with the result of a release: None, or the error.
ReleaseCallback = Callable[[Optional[Error]], None]
AcquireMessage = Union[pb.AcquireRequest, pb.AcquireAllRequest]


@dataclass(frozen=True)
class QueuePosition:
    """Position in the queue of a lock. A hint, which the broker updates at most once a second."""

    #: Position counted from 1, which is the next waiter. 0 if the call is not in the queue yet, because the store
    #: recovers: the client repeats the call until the end of its wait.
    position: int
    #: Number of all waiters.
    queue_length: int
    #: Some holders of the lock; at most 5.
    holders: list[Holder]
    #: Closure of the lock, if the lock is closed.
    closure: Closure | None = None
    #: Recovery of the store, while it grants nothing new.
    recovery: StoreRecovery | None = None


@dataclass(frozen=True)
class PermitUsage:
    """Limit of a semaphore, and the permits in use."""

    #: Limit in use.
    limit: int
    #: Permits of the holders. More than the limit if the limit was lowered while they were held.
    used: int
    #: True if the limit was set with ``set_limit``. False if it is the limit of the present callers.
    is_limit_set: bool

    @property
    def free(self) -> int:
        """Permits that are free."""
        return max(0, self.limit - self.used)


@dataclass(frozen=True)
class LockState:
    """State of a lock at the time at which the broker read it."""

    #: Holders of the lock; at most 100.
    holders: list[Holder]
    #: Number of waiters in the queue.
    queue_length: int
    #: Fencing token of the latest grant.
    last_fencing_token: int
    #: Closure of the lock, if the lock is closed.
    closure: Closure | None = None
    #: Limit and used permits of a semaphore that has holders, waiters or a set limit.
    permit_usage: PermitUsage | None = None


@dataclass(frozen=True)
class AcquireParams:
    """An acquire request, which is equal in all attempts."""

    targets: tuple[types.LockTarget, ...]
    owner: types.Owner
    request_id: str
    ttl: float | None = None
    max_hold: float | None = None
    lock_delay: float | None = None
    disconnect_grace: float | None = None
    at_least: float | None = None
    #: Trace context of the caller; empty if there is none.
    traceparent: str = ""

    def locks(self) -> set[LockName]:
        """Returns the locks of the targets."""
        return {lock_of(target) for target in self.targets}

    def to_message(self, wait: float, under: types.Lease | None) -> AcquireMessage:
        """Builds the protocol message with the remaining time to wait and the lease to add the lock to."""
        request: AcquireMessage
        if len(self.targets) == 1:
            request = pb.AcquireRequest(target=self.targets[0], under=under)
        else:
            request = pb.AcquireAllRequest(targets=self.targets)
        request.owner.CopyFrom(self.owner)
        request.request_id = self.request_id
        request.wait_timeout.CopyFrom(to_duration(wait))
        if self.ttl is not None:
            request.ttl.CopyFrom(to_duration(self.ttl))
        if self.max_hold is not None:
            request.max_hold.CopyFrom(to_duration(self.max_hold))
        if self.lock_delay is not None:
            request.lock_delay.CopyFrom(to_duration(self.lock_delay))
        if self.disconnect_grace is not None:
            request.disconnect_grace.CopyFrom(to_duration(self.disconnect_grace))
        if self.at_least is not None:
            request.at_least.CopyFrom(to_duration(self.at_least))
        return request


@dataclass
class AcquireScope:
    """The locks that one acquire has in its lease."""

    request_id: str
    locks: list[LockName] = field(default_factory=list)


class AcquireReceiver(Protocol):
    """The receiver of the results of an acquire, called by the client's thread. No method may block."""

    def on_queue_position(self, position: QueuePosition) -> None:
        """Receives the queue position."""

    def on_result(self, result: LeaseHandle | Error) -> None:
        """Receives the result. A handle that is dropped releases its locks."""


class CommandSender(Protocol):
    """The sender of commands to the session of a stream, or to a fake broker.

    Called from any thread, also from a finalizer. No method blocks.
    """

    def acquire(self, command: AcquireCommand) -> None:
        """Acquires locks and keeps their lease."""

    def cancel(self, request_id: str) -> None:
        """Cancels an acquire whose caller no longer waits. A granted lock is released."""

    def release(self, lease_id: str, scope: AcquireScope, callback: ReleaseCallback | None) -> None:
        """Releases the locks of one acquire."""


@dataclass
class AcquireCommand:
    """An acquire command with its caller."""

    params: AcquireParams
    #: Time to wait in the queue, in seconds.
    wait: float
    receiver: AcquireReceiver
    under: LeaseHandle | None = None
