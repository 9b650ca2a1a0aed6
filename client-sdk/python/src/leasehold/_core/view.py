"""State of a held lock, for both interfaces."""

from __future__ import annotations

import weakref

from leasehold._core.lease_handle import LeaseHandle
from leasehold.errors import LeaseLost, Loss, LostReason
from leasehold.target import LockName, TargetLike, target

_RELEASED = Loss(LostReason.RELEASED)


class LeaseView:
    """A lock that is held, or several locks under one lease."""

    def __init__(self, handle: LeaseHandle) -> None:
        self.handle = handle
        handle.is_delivered = True

    @property
    def lease_id(self) -> str:
        """Public identifier of the lease, which may be logged and displayed."""
        return self.handle.lease_id

    @property
    def fencing_token(self) -> int:
        """Fencing token of the lock, or of the first lock if there are several. Positive and below 2**53.

        Send it with every write to the protected resource, and reject smaller tokens there.
        """
        return self.handle.tokens[0][1] if self.handle.tokens else 0

    def fencing_token_of(self, lock: TargetLike) -> int | None:
        """Returns the fencing token of ``lock``, or None if the call of this lease did not acquire that lock."""
        lock_name = target(lock).lock
        return next((token for name, token in self.handle.tokens if name == lock_name), None)

    @property
    def locks(self) -> list[str]:
        """Names of the locks, as ``namespace/name``."""
        return [str(name) for name, _ in self.handle.tokens]

    def has(self, lock: LockName) -> bool:
        """Returns true if the call of this lease acquired ``lock``."""
        return any(name == lock for name, _ in self.handle.tokens)

    def is_valid(self) -> bool:
        """Returns true if the lease is valid now, by the client's clock. Once false, it stays false."""
        return self.loss is None

    def remaining(self) -> float:
        """Returns the seconds for which the lock stays valid if no further heartbeat is confirmed."""
        return 0.0 if self.handle.is_released else self.handle.validity.remaining()

    @property
    def loss(self) -> Loss | None:
        """Reason for which the lock is no longer held, with the broker's message, or None while it is held."""
        loss = self.handle.validity.loss()
        if loss is None and self.handle.is_released:
            return _RELEASED
        return loss

    @property
    def lost_reason(self) -> LostReason | None:
        """Reason for which the lock is no longer held, or None while it is held."""
        loss = self.loss
        return None if loss is None else loss.reason

    def check(self) -> None:
        """Raises LeaseLost if the lock is no longer held. Call it before a step that must not run without the lock."""
        loss = self.loss
        if loss is not None:
            raise LeaseLost(loss)

    def __repr__(self) -> str:
        name = type(self).__name__
        state = f"remaining={self.remaining():.1f}" if self.is_valid() else f"lost={self.loss}"
        return f"<{name} {self.lease_id} locks={self.locks} fencing_token={self.fencing_token} {state}>"


class LossHook:
    """A hook that is called once when a lease is lost, unless the lease was released before.

    The client's thread refers to the hook. The hook therefore refers weakly to the lease, so that an unreferenced lease
    is released.
    """

    def __init__(self, lease: LeaseView) -> None:
        self._handle = weakref.ref(lease.handle)
        self._is_removed = False
        lease.handle.validity.add_end_hook(self._on_end)

    def on_loss(self) -> None:
        """Handles the loss. Called in the thread that detects the loss; must not block."""
        raise NotImplementedError

    def remove(self) -> None:
        """Removes the hook."""
        self._is_removed = True
        handle = self._handle()
        if handle is not None:
            handle.validity.remove_end_hook(self._on_end)

    def _on_end(self) -> None:
        handle = self._handle()
        if not self._is_removed and handle is not None and not handle.is_released:
            self.on_loss()
