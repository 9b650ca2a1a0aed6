"""Leases of held locks, for threads."""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from types import TracebackType
from typing import Callable

from leasehold._core import current_leases
from leasehold._core.lease_handle import LeaseHandle
from leasehold._core.view import LeaseView, LossHook
from leasehold.errors import Error, Forked, LeaseLost, Loss, LostReason

log = logging.getLogger("leasehold")

#: Interval at which ``Lost.wait`` reads the clock, in seconds. One timer is not enough: none runs through a suspend.
_CHECK_INTERVAL = 0.1


class Lease(LeaseView):
    """A lock that is held, or several locks under one lease, in a program with threads.

    The client renews the lease until the lease is released or lost, in a thread that the program cannot block. A
    ``with`` block releases the lease at its end. Without a block, call ``release``. An unreferenced lease is released,
    with a ResourceWarning.

    A thread cannot be stopped from outside. Call ``check`` before each step that needs the lock, or check ``lost``, or
    let ``on_lost`` stop the work.
    """

    def __init__(self, handle: LeaseHandle, on_lost: Callable[[Lease], object] | None = None) -> None:
        super().__init__(handle)
        self.lost = Lost(self)
        if on_lost is not None:
            _LostCallback(self, on_lost)

    def release(self) -> None:
        """Releases the lock and waits until the broker has confirmed the release.

        Repeated calls have no effect. If the lease was shared with ``under``, each of the leases releases only the
        locks that its own call acquired.

        Raises LeaseLost if the lock was lost before: the protected work may have overlapped with the work of another
        holder. Raises Unconfirmed if no broker confirmed the release before the lease expired, and Refused if a broker
        rejected the release.
        """
        if self.handle.is_forked:
            raise Forked
        loss = self.handle.validity.loss()
        if loss is not None:
            if self.handle.release():
                raise LeaseLost(loss)
            return
        results: queue.SimpleQueue[Error | None] = queue.SimpleQueue()
        if not self.handle.release(results.put):
            return
        error = results.get()
        if isinstance(error, LeaseLost):
            raise LeaseLost(self.handle.validity.loss() or error.loss)
        if error is not None:
            raise error

    def __enter__(self) -> Lease:
        current_leases.push(self)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        current_leases.remove(self)
        if error_type is None:
            self.release()
        elif not issubclass(error_type, Exception):
            # After an interrupt the block ends without waiting for the broker.
            self.handle.release()
        else:
            try:
                self.release()
            except Error as release_error:
                log.warning("lease %s, after an exception: %s", self.lease_id, release_error)


class Lost:
    """The loss of a lease: true, permanently, once the lease is lost or released."""

    def __init__(self, lease: LeaseView) -> None:
        # Without a reference to the lease: a cycle of references would delay the release of an unreferenced lease.
        self._view = LeaseView(lease.handle)

    def __bool__(self) -> bool:
        return self._view.loss is not None

    def is_set(self) -> bool:
        """Returns true if the lease has ended."""
        return bool(self)

    @property
    def loss(self) -> Loss | None:
        """The reason for which the lease has ended, with the broker's message, or None while it is valid."""
        return self._view.loss

    @property
    def reason(self) -> LostReason | None:
        """The reason for which the lease has ended, or None while it is valid."""
        return self._view.lost_reason

    def wait(self, timeout: float | None = None) -> LostReason | None:
        """Waits until the lease has ended, at most ``timeout`` seconds.

        Returns the reason, or None if the lease is still valid then.
        """
        ended = threading.Event()
        validity = self._view.handle.validity
        validity.add_end_hook(ended.set)
        try:
            remaining = timeout
            while self._view.loss is None and (remaining is None or remaining > 0):
                interval = _CHECK_INTERVAL if remaining is None else min(_CHECK_INTERVAL, remaining)
                ended.wait(interval)
                remaining = None if remaining is None else remaining - interval
            return self.reason
        finally:
            validity.remove_end_hook(ended.set)


class _LostCallback(LossHook):
    def __init__(self, lease: Lease, on_lost: Callable[[Lease], object]) -> None:
        self._lease = weakref.ref(lease)
        self._callback = on_lost
        super().__init__(lease)

    def on_loss(self) -> None:
        lease = self._lease()
        if lease is not None:
            # Runs in a separate thread, because the callback may block and heartbeats must not wait for it.
            threading.Thread(target=self._callback, args=(lease,), name="leasehold-lost", daemon=True).start()
