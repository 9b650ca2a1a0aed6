"""What to take: a lock's name, and how it is shared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from leasehold.v1 import types_pb2 as pb

_MOST = 2**31 - 1


@dataclass(frozen=True)
class LockName:
    """A lock, with the default namespace filled in."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def proto(self) -> pb.LockRef:
        """As the broker names it."""
        return pb.LockRef(namespace=self.namespace, name=self.name)


@dataclass(frozen=True)
class Target:
    """One lock to take, and how: ``Target("gpu", namespace="render", permits=2, limit=8)``.

    A plain string is a target, too: the lock of this name in the default namespace, for one holder alone.
    """

    #: 1-512 bytes without control characters.
    name: str
    #: 1-63 characters of ``[a-z0-9-]`` instead of ``default``.
    namespace: str = ""
    #: Together with any number of other holders that share it, but with none that does not.
    shared: bool = False
    #: As a semaphore: so many of the ``limit`` that the lock has in all.
    permits: int | None = None
    #: 1-1000; all callers name the same. Unset with ``permits``: the one in use.
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.shared and self.permits is not None:
            raise ValueError("a lock is either shared or has permits")
        if self.limit is not None and self.permits is None:
            raise ValueError("a limit needs permits")

    @property
    def lock(self) -> LockName:
        """The lock of the target."""
        return LockName(self.namespace or "default", self.name)

    def proto(self) -> pb.LockTarget:
        """As the broker is asked for it."""
        if self.permits is None:
            mode = pb.LOCK_MODE_SHARED if self.shared else pb.LOCK_MODE_EXCLUSIVE
            return pb.LockTarget(namespace=self.namespace, name=self.name, mode=mode)
        return pb.LockTarget(
            namespace=self.namespace,
            name=self.name,
            mode=pb.LOCK_MODE_SEMAPHORE,
            # What does not fit is refused by the broker, as too much.
            permits=min(self.permits, _MOST),
            limit=min(self.limit or 0, _MOST),
        )


TargetLike = Union[str, Target]


def target(what: TargetLike) -> Target:
    """The target that is meant."""
    if isinstance(what, Target):
        return what
    if isinstance(what, str):
        return Target(what)
    raise TypeError(f"a lock's name or a Target is expected, not {type(what).__name__}")


def lock_of(one: pb.LockTarget) -> LockName:
    """The lock of a target as the broker tells it."""
    return LockName(one.namespace or "default", one.name)
