"""What the running code holds, so that code deep inside can make sure of it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from leasehold.errors import NotHeld
from leasehold.target import TargetLike, target

if TYPE_CHECKING:
    from leasehold._core.view import LeaseView

_held: ContextVar[tuple[LeaseView, ...]] = ContextVar("leasehold_held", default=())


def enter(lease: LeaseView) -> None:
    """The code from here on runs with the lease."""
    _held.set((*_held.get(), lease))


def leave(lease: LeaseView) -> None:
    """The code from here on runs without it."""
    _held.set(tuple(one for one in _held.get() if one is not lease))


def assert_held(lock: TargetLike) -> LeaseView:
    """The lease under which the running code has this lock, taken by a ``with`` block or a ``locked``
    function around it, in this thread or in the task or thread that has begun this one with its context.

    Raises NotHeld if there is none, and LeaseLost if it was lost.
    """
    wanted = target(lock).lock
    for lease in reversed(_held.get()):
        if lease.has(wanted):
            lease.check()
            return lease
    raise NotHeld(f"the running code does not hold {wanted}")
