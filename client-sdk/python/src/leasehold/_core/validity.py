"""Validity of a lease, shared between its holders and the client's thread, which renews it."""

from __future__ import annotations

import threading
from typing import Callable

from leasehold._core import clock, process
from leasehold.errors import Loss, LostReason

_FORKED = Loss(LostReason.FORKED, "the lease belongs to the parent of this process")


def safety_margin(ttl: float) -> float:
    """Returns the safety margin before the end of a validity, in seconds, in which the protected work can stop."""
    return min(max(ttl / 10, 0.5), ttl / 4)


class LeaseValidity:
    """The validity of a lease. Latches: once ended, it never starts again, in any thread."""

    def __init__(self, valid_until: float, ttl: float) -> None:
        # Reentrant, because the garbage collector may run a finalizer while the lock is held.
        self._lock = threading.RLock()
        self._valid_until = valid_until - safety_margin(ttl)
        self._loss: Loss | None = None
        self._end_hooks: list[Callable[[], None]] = []
        self._generation = process.generation()

    def extend(self, valid_until: float, ttl: float) -> bool:
        """Extends the validity after a confirmed heartbeat.

        Returns false if the validity has ended before; then it stays ended.
        """
        with self._lock:
            if self.loss() is not None:
                return False
            self._valid_until = max(self._valid_until, valid_until - safety_margin(ttl))
            return True

    def end(self, loss: Loss) -> None:
        """Ends the validity. Only the first reason is kept."""
        with self._lock:
            if self._loss is not None:
                return
            self._loss = loss
            hooks, self._end_hooks = self._end_hooks, []
        for hook in hooks:
            hook()

    @property
    def has_ended(self) -> bool:
        """True if the end of the validity was detected. Takes no lock and reads no clock, for use in finalizers."""
        return self._loss is not None

    def is_valid(self) -> bool:
        """Returns true if the lease is valid now. Once false, it stays false."""
        return self.loss() is None

    def remaining(self) -> float:
        """Returns the seconds for which the lease stays valid if no further heartbeat is confirmed."""
        valid_until = self._valid_until
        if self.loss() is not None:
            return 0.0
        return max(0.0, valid_until - clock.now())

    def loss(self) -> Loss | None:
        """Returns the reason for which the validity has ended, or None while the lease is valid."""
        if self._generation != process.generation():
            # At the fork the mutex may have been held by a thread that does not exist in this process.
            return _FORKED
        if self._loss is None and clock.now() >= self._valid_until:
            with self._lock:
                # Checked again, since no other thread can extend the validity while the mutex is held.
                if self._loss is None and clock.now() >= self._valid_until:
                    self.end(Loss(LostReason.EXPIRED))
        return self._loss

    def add_end_hook(self, hook: Callable[[], None]) -> None:
        """Calls the hook once the validity has ended, in the thread that detects the end; at once if it has ended."""
        with self._lock:
            if self._loss is None:
                self._end_hooks.append(hook)
                return
        hook()

    def remove_end_hook(self, hook: Callable[[], None]) -> None:
        """Removes the hook. A call of the hook that has started in another thread is not interrupted."""
        with self._lock:
            if hook in self._end_hooks:
                self._end_hooks.remove(hook)
