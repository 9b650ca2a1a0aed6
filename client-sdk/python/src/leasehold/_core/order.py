"""What clients and leases ask of the thread that keeps their leases."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable, Optional, Protocol, Union

from leasehold._core.reading import duration
from leasehold.errors import Error, Holder
from leasehold.target import LockName, lock_of
from leasehold.v1 import lock_service_pb2 as pb
from leasehold.v1 import types_pb2 as types

if TYPE_CHECKING:
    from leasehold._core.grip import Grip

#: What is told at the end of a release: nothing, or why it did not go as hoped.
Answer = Callable[[Optional[Error]], None]
Acquire = Union[pb.AcquireRequest, pb.AcquireAllRequest]


@dataclass(frozen=True)
class Place:
    """A place in line. A hint: it was true when the broker looked, at most once a second."""

    #: 1 is next.
    position: int
    #: How many wait in all.
    queue_length: int
    #: Some who hold the lock; at most 5.
    holders: list[Holder]


@dataclass(frozen=True)
class LockState:
    """What a lock was doing when the broker looked."""

    #: At most 100.
    holders: list[Holder]
    #: How many wait.
    queue_length: int
    #: The newest token given.
    last_fencing_token: int


@dataclass(frozen=True)
class Call:
    """What is asked for; the same however often it is sent."""

    targets: tuple[types.LockTarget, ...]
    owner: types.Owner
    request_id: str
    ttl: float | None = None
    max_hold: float | None = None
    lock_delay: float | None = None
    disconnect_grace: float | None = None
    #: The caller's trace context, if it has one.
    traceparent: str = ""

    def locks(self) -> set[LockName]:
        """The locks of its targets."""
        return {lock_of(target) for target in self.targets}

    def message(self, wait: float, under: types.Lease | None) -> Acquire:
        """The call with so much time left to wait, under this lease."""
        request: Acquire
        if len(self.targets) == 1:
            request = pb.AcquireRequest(target=self.targets[0], under=under)
        else:
            request = pb.AcquireAllRequest(targets=self.targets)
        request.owner.CopyFrom(self.owner)
        request.request_id = self.request_id
        request.wait_timeout.CopyFrom(duration(wait))
        if self.ttl is not None:
            request.ttl.CopyFrom(duration(self.ttl))
        if self.max_hold is not None:
            request.max_hold.CopyFrom(duration(self.max_hold))
        if self.lock_delay is not None:
            request.lock_delay.CopyFrom(duration(self.lock_delay))
        if self.disconnect_grace is not None:
            request.disconnect_grace.CopyFrom(duration(self.disconnect_grace))
        return request


@dataclass
class Entry:
    """What one acquire has of its lease."""

    request_id: str
    locks: list[LockName] = field(default_factory=list)


class Reply(Protocol):
    """The caller of an acquire, as seen from the thread. Nothing here may block."""

    def place(self, place: Place) -> None:
        """Where it stands."""

    def done(self, result: Grip | Error) -> None:
        """What it got. A grip that is not taken gives itself back."""


class Orders(Protocol):
    """Whoever keeps leases: a stream's keeper, or a fake broker. Called from any thread, also from a
    finalizer; nothing here blocks.
    """

    def acquire(self, ask: Ask) -> None:
        """Takes locks, and keeps their lease."""

    def cancel(self, request_id: str) -> None:
        """The caller is gone. What it got is given back."""

    def release(self, lease_id: str, entry: Entry, answer: Answer | None) -> None:
        """Gives back what one acquire has got."""


@dataclass
class Ask:
    """One acquire."""

    call: Call
    #: How long to wait in line, in seconds.
    wait: float
    reply: Reply
    under: Grip | None = None
