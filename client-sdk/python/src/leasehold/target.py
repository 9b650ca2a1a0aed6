"""Targets of an acquire: the name of a lock, and the mode in which it is requested."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from leasehold.errors import Invalid
from leasehold.v1 import types_pb2 as pb

INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class LockName:
    """The name of a lock with its namespace, which is ``default`` unless it was given."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def proto(self) -> pb.LockRef:
        """Returns the protocol message."""
        return pb.LockRef(namespace=self.namespace, name=self.name)


@dataclass(frozen=True)
class Target:
    """One lock to acquire and its mode: ``Target("gpu", namespace="render", permits=2, limit=8)``.

    A plain string in place of a Target requests the lock of this name in the default namespace, exclusively.
    """

    #: Name of the lock: 1-512 bytes without control characters.
    name: str
    #: Namespace of the lock: 1-63 characters of ``[a-z0-9-]``; empty for ``default``.
    namespace: str = ""
    #: True to share the lock with any number of other shared holders, and with no exclusive one.
    shared: bool = False
    #: Number of permits to acquire from a semaphore with ``limit`` permits; None for a lock without permits.
    permits: int | None = None
    #: Number of all permits of the semaphore: 1-1000, equal for all callers. None with ``permits``: the limit in use. A
    #: limit that was set with ``set_limit`` of a client overrides it.
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.shared and self.permits is not None:
            raise ValueError("a lock is either shared or has permits")
        if self.limit is not None and self.permits is None:
            raise ValueError("a limit requires permits")

    @property
    def lock(self) -> LockName:
        """Name of the lock, with its namespace."""
        return LockName(self.namespace or "default", self.name)

    def proto(self) -> pb.LockTarget:
        """Returns the protocol message."""
        if self.permits is None:
            mode = pb.LOCK_MODE_SHARED if self.shared else pb.LOCK_MODE_EXCLUSIVE
            return pb.LockTarget(namespace=self.namespace, name=self.name, mode=mode)
        return pb.LockTarget(
            namespace=self.namespace,
            name=self.name,
            mode=pb.LOCK_MODE_SEMAPHORE,
            # Larger numbers do not fit into the field. The broker rejects the bounded number as too large.
            permits=min(self.permits, INT32_MAX),
            limit=min(self.limit or 0, INT32_MAX),
        )


TargetLike = Union[str, Target]


def target(lock: TargetLike) -> Target:
    """Converts a name to a target, and returns a target unchanged."""
    if isinstance(lock, Target):
        return lock
    if isinstance(lock, str):
        return Target(lock)
    raise TypeError(f"expected a lock name or a Target, not {type(lock).__name__}")


def checked_limit(limit: int | None) -> int | None:
    """Returns the limit of ``set_limit``. Raises Invalid for 0, with which the API removes a limit."""
    if limit == 0:
        raise Invalid("limit: must be 1 to 1000, or None to remove the limit")
    return limit


def lock_of(message: pb.LockTarget) -> LockName:
    """Returns the lock of a target in a protocol message."""
    return LockName(message.namespace or "default", message.name)
