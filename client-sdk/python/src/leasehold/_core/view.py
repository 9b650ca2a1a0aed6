"""What is known of a lock that is held, the same for both interfaces."""

from __future__ import annotations

import weakref

from leasehold._core.grip import Grip
from leasehold.errors import LeaseLost, Loss, LostReason
from leasehold.target import LockName, TargetLike, target

_RELEASED = Loss(LostReason.RELEASED)


class LeaseView:
    """A lock that is held, or several under one lease."""

    def __init__(self, grip: Grip) -> None:
        self.grip = grip
        grip.is_taken = True

    @property
    def lease_id(self) -> str:
        """Public identifier of the lease: safe to log and to show."""
        return self.grip.lease_id

    @property
    def fencing_token(self) -> int:
        """Send it with every write to what the lock protects, and refuse smaller ones there. Of the first
        lock, if there are several. Positive and below 2**53.
        """
        return self.grip.tokens[0][1] if self.grip.tokens else 0

    def fencing_token_of(self, lock: TargetLike) -> int | None:
        """The fencing token of this lock, if the lease was taken for it."""
        wanted = target(lock).lock
        return next((token for name, token in self.grip.tokens if name == wanted), None)

    @property
    def locks(self) -> list[str]:
        """The locks, as namespace/name."""
        return [str(name) for name, _ in self.grip.tokens]

    def has(self, lock: LockName) -> bool:
        """Whether the lease was taken for this lock."""
        return any(name == lock for name, _ in self.grip.tokens)

    def is_valid(self) -> bool:
        """Whether the lock can be trusted at this moment, by the clock. Once false it stays so."""
        return self.loss is None

    def remaining(self) -> float:
        """For how many seconds it can be trusted if no heartbeat is confirmed from now on."""
        return 0.0 if self.grip.is_given_back else self.grip.trust.remaining()

    @property
    def loss(self) -> Loss | None:
        """Why it is not held any more, if it is not, with what the broker said."""
        loss = self.grip.trust.loss()
        if loss is None and self.grip.is_given_back:
            return _RELEASED
        return loss

    @property
    def lost_reason(self) -> LostReason | None:
        """Why it is not held any more, if it is not."""
        loss = self.loss
        return None if loss is None else loss.reason

    def check(self) -> None:
        """Raises LeaseLost if the lock is not held any more; for a step that must not be done without it."""
        loss = self.loss
        if loss is not None:
            raise LeaseLost(loss)

    def __repr__(self) -> str:
        name = type(self).__name__
        state = f"remaining={self.remaining():.1f}" if self.is_valid() else f"lost={self.loss}"
        return f"<{name} {self.lease_id} locks={self.locks} fencing_token={self.fencing_token} {state}>"


class LossHook:
    """Tells of a loss once, unless the lease was given back before.

    The thread that keeps the lease refers to it, so it must not keep the lease from giving itself back.
    """

    def __init__(self, lease: LeaseView) -> None:
        self._grip = weakref.ref(lease.grip)
        self._is_off = False
        lease.grip.trust.on_end(self._ended)

    def tell(self) -> None:
        """It is lost. Called in whatever thread notices; must not block."""
        raise NotImplementedError

    def off(self) -> None:
        """Nobody wants to know any more."""
        self._is_off = True
        grip = self._grip()
        if grip is not None:
            grip.trust.off_end(self._ended)

    def _ended(self) -> None:
        grip = self._grip()
        if not self._is_off and grip is not None and not grip.is_given_back:
            self.tell()
