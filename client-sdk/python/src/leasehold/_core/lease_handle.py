"""Result of a granted acquire, which is released when no reference to it is left."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence

from leasehold._core import clock, process, telemetry
from leasehold._core.command import AcquireScope, CommandSender, ReleaseCallback
from leasehold._core.validity import LeaseValidity
from leasehold.target import LockName

log = logging.getLogger("leasehold")


class LeaseHandle:
    """The locks of one acquire, with the validity of their lease and the means to release them."""

    def __init__(
        self,
        lease_id: str,
        tokens: Sequence[tuple[LockName, int]],
        request_id: str,
        validity: LeaseValidity,
        commands: CommandSender,
        backend_reference: object,
    ) -> None:
        self.lease_id = lease_id
        #: The locks that the call acquired or entered, with their fencing tokens.
        self.tokens: list[tuple[LockName, int]] = list(tokens)
        self.request_id = request_id
        self.validity = validity
        self.commands = commands
        #: True if a caller has received the handle, and so is responsible for its release.
        self.is_delivered = False
        self._is_released = False
        self._granted_at = clock.now()
        self._generation = process.generation()
        # Keeps the client alive while the handle exists.
        self._backend_reference = backend_reference

    @property
    def is_released(self) -> bool:
        """True if the handle was released."""
        return self._is_released

    @property
    def is_forked(self) -> bool:
        """True if the handle was created in the process that this one was forked from."""
        return self._generation != process.generation()

    def release(self, callback: ReleaseCallback | None = None, *, is_finalizer: bool = False) -> bool:
        """Releases the locks, once. Returns false, without a call of the callback, if they were released before."""
        if self._is_released or self.is_forked:
            return False
        self._is_released = True
        is_lost = self.validity.has_ended
        scope = AcquireScope(self.request_id, [lock for lock, _ in self.tokens])
        self.commands.release(self.lease_id, scope, callback)
        if not is_finalizer:
            telemetry.record_hold(self._granted_at, is_lost=is_lost)
        return True

    def __del__(self) -> None:
        if self._is_released or self.is_forked:
            return
        is_unreleased = self.is_delivered and not self.validity.has_ended
        self.release(is_finalizer=True)
        if is_unreleased:
            names = ", ".join(str(lock) for lock, _ in self.tokens)
            warnings.warn(
                f"the lease of {names} was not released: use a with block, or call release",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
