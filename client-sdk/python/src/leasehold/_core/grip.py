"""What one acquire has got: it gives itself back when nobody can do it any more."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence

from leasehold._core import clock, process, telemetry
from leasehold._core.order import Answer, Entry, Orders
from leasehold._core.trust import Trust
from leasehold.target import LockName

log = logging.getLogger("leasehold")


class Grip:
    """The locks of one acquire, the trust in their lease, and the way to give them back."""

    def __init__(
        self,
        lease_id: str,
        tokens: Sequence[tuple[LockName, int]],
        request_id: str,
        trust: Trust,
        orders: Orders,
        alive: object,
    ) -> None:
        self.lease_id = lease_id
        #: The locks that the call took or entered, with their fencing tokens.
        self.tokens: list[tuple[LockName, int]] = list(tokens)
        self.request_id = request_id
        self.trust = trust
        self.orders = orders
        #: Whether a caller has it, who should have given it back.
        self.is_taken = False
        self._is_given_back = False
        self._since = clock.now()
        self._generation = process.generation()
        # The client lives as long as what was acquired with it.
        self._alive = alive

    @property
    def is_given_back(self) -> bool:
        """Whether somebody has given it back."""
        return self._is_given_back

    @property
    def is_foreign(self) -> bool:
        """Whether it belongs to the parent of this process."""
        return self._generation != process.generation()

    def give_back(self, answer: Answer | None = None, *, is_finalizer: bool = False) -> bool:
        """Gives it back, once. False if that was done before; then nobody answers."""
        if self._is_given_back or self.is_foreign:
            return False
        self._is_given_back = True
        is_lost = self.trust.is_ended
        entry = Entry(self.request_id, [lock for lock, _ in self.tokens])
        self.orders.release(self.lease_id, entry, answer)
        if not is_finalizer:
            telemetry.held(self._since, is_lost=is_lost)
        return True

    def __del__(self) -> None:
        if self._is_given_back or self.is_foreign:
            return
        is_missed = self.is_taken and not self.trust.is_ended
        self.give_back(is_finalizer=True)
        if is_missed:
            names = ", ".join(str(lock) for lock, _ in self.tokens)
            warnings.warn(f"nobody has released the lease of {names}", ResourceWarning, stacklevel=2, source=self)
