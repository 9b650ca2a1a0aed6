"""How long a lease may be trusted, shared between its holders and the thread that keeps it alive."""

from __future__ import annotations

import threading
from typing import Callable

from leasehold._core import clock, process
from leasehold.errors import Loss, LostReason

_FORKED = Loss(LostReason.FORKED, "the lease belongs to the parent of this process")


def margin(ttl: float) -> float:
    """How much earlier than the validity ends a holder gives up, so that its work can stop in time."""
    return min(max(ttl / 10, 0.5), ttl / 4)


class Trust:
    """Latches: once over, it never begins again, whoever noticed first."""

    def __init__(self, valid_until: float, ttl: float) -> None:
        # Entered again if the collector of cycles runs a finalizer inside it.
        self._lock = threading.RLock()
        self._until = valid_until - margin(ttl)
        self._loss: Loss | None = None
        self._hooks: list[Callable[[], None]] = []
        self._generation = process.generation()

    def extend(self, valid_until: float, ttl: float) -> bool:
        """Validity was confirmed. False if trust was over before that was heard: then it stays over."""
        with self._lock:
            if self.loss() is not None:
                return False
            self._until = max(self._until, valid_until - margin(ttl))
            return True

    def end(self, loss: Loss) -> None:
        """Ends it. Only the first reason stays."""
        with self._lock:
            if self._loss is not None:
                return
            self._loss = loss
            hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook()

    @property
    def is_ended(self) -> bool:
        """Whether its end was noticed. Looks at nothing else, so that a finalizer may ask."""
        return self._loss is not None

    def is_valid(self) -> bool:
        """Whether it can be trusted at this moment. Once false it stays so."""
        return self.loss() is None

    def remaining(self) -> float:
        """How long it can be trusted if nothing is confirmed from now on."""
        until = self._until
        if self.loss() is not None:
            return 0.0
        return max(0.0, until - clock.now())

    def loss(self) -> Loss | None:
        """Why it is over, if it is."""
        if self._generation != process.generation():
            # The lock may have been held by a thread that this process does not have.
            return _FORKED
        if self._loss is None and clock.now() >= self._until:
            with self._lock:
                # Nobody extends it between this look and the end.
                if self._loss is None and clock.now() >= self._until:
                    self.end(Loss(LostReason.EXPIRED))
        return self._loss

    def on_end(self, hook: Callable[[], None]) -> None:
        """Calls the hook once it is over, in whatever thread notices; at once if it is."""
        with self._lock:
            if self._loss is None:
                self._hooks.append(hook)
                return
        hook()

    def off_end(self, hook: Callable[[], None]) -> None:
        """The hook is not to be called any more. It may be under way."""
        with self._lock:
            if hook in self._hooks:
                self._hooks.remove(hook)
