"""The leases that the running code holds, for ``assert_held``."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from leasehold.errors import NotHeld
from leasehold.target import TargetLike, target

if TYPE_CHECKING:
    from leasehold._core.view import LeaseView

_current: ContextVar[tuple[LeaseView, ...]] = ContextVar("leasehold_held", default=())


def push(lease: LeaseView) -> None:
    """Adds a lease to those that the running code holds."""
    _current.set((*_current.get(), lease))


def remove(lease: LeaseView) -> None:
    """Removes a lease from those that the running code holds."""
    _current.set(tuple(other for other in _current.get() if other is not lease))


def assert_held(lock: TargetLike) -> LeaseView:
    """Returns the lease under which the running code holds this lock.

    The lock must have been acquired by an enclosing ``with`` block or ``locked`` function, in this thread or task, or
    in the one that started this one with a copy of its context.

    Raises NotHeld if there is no such lease, and LeaseLost if the lease was lost.
    """
    lock_name = target(lock).lock
    for lease in reversed(_current.get()):
        if lease.has(lock_name):
            lease.check()
            return lease
    raise NotHeld(f"the running code does not hold {lock_name}")
