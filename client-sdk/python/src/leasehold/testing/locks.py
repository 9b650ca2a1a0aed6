"""The locks of a fake broker, with their holders and queues."""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Callable

from leasehold._core import clock
from leasehold._core.command import AcquireCommand, AcquireScope, LockState, PermitUsage, QueuePosition, ReleaseCallback
from leasehold._core.validity import LeaseValidity
from leasehold.errors import (
    AcquireError,
    Closed,
    Contention,
    Error,
    Held,
    Holder,
    LeaseLost,
    LimitMismatch,
    Loss,
    LostReason,
    UpgradeDenied,
    WaitTimeout,
)
from leasehold.target import LockName, lock_of
from leasehold.v1 import types_pb2 as pb

if TYPE_CHECKING:
    from leasehold.testing.broker import FakeBackend

#: Limit of a lock that is not a semaphore. An exclusive holder weighs as much, and a shared holder 1.
_EXCLUSIVE_WEIGHT = 2**30
_TTL_DEFAULT = 10.0
_MISMATCH_MESSAGE = "another limit or mode is in use on this lock, or the request exceeds its permits"
_UPGRADE_MESSAGE = "the lease holds the lock in a weaker mode and cannot upgrade it"


@dataclass
class _Hold:
    """The hold of a lease on a lock."""

    lease_id: str
    holder: Holder
    #: Weight of each entry, by the request id of its acquire.
    entries: dict[str, int] = field(default_factory=dict)

    @property
    def weight(self) -> int:
        """Weight of the heaviest entry."""
        return max(self.entries.values(), default=0)


@dataclass
class _Waiter:
    client: FakeBackend
    command: AcquireCommand
    deadline: float
    notified: QueuePosition | None = None

    @property
    def locks(self) -> list[LockName]:
        """The locks of the call."""
        return [lock_of(target) for target in self.command.params.targets]

    def weight_of(self, lock: LockName) -> int:
        """Returns the weight that the call requests of a lock; 0 if it does not request the lock."""
        return sum(_weight_and_limit(target)[0] for target in self.command.params.targets if lock_of(target) == lock)

    @property
    def under(self) -> str | None:
        """Id of the lease given as ``under``, if any."""
        return self.command.under.lease_id if self.command.under is not None else None


def _weight_and_limit(target: pb.LockTarget) -> tuple[int, int]:
    """Returns the weight of a target and the limit of its lock; limit 0: the limit in use."""
    if target.mode == pb.LOCK_MODE_SHARED:
        return 1, _EXCLUSIVE_WEIGHT
    if target.mode == pb.LOCK_MODE_SEMAPHORE:
        return max(target.permits, 1), target.limit
    return _EXCLUSIVE_WEIGHT, _EXCLUSIVE_WEIGHT


class Locks:
    """All locks and queues of a fake broker. Accessed by one thread only."""

    def __init__(self) -> None:
        self._holds: dict[LockName, list[_Hold]] = {}
        # The limits of the locks in use, and the limits set with ``set_limit``. The first are kept for idle locks.
        self._limits: dict[LockName, int] = {}
        self._set_limits: dict[LockName, int] = {}
        # The client and the validity of each lease.
        self._leases: dict[str, tuple[FakeBackend, LeaseValidity]] = {}
        self._queue: list[_Waiter] = []
        self._last_token = 0
        self._rejections: dict[LockName, list[AcquireError]] = {}
        self._closed_clients: list[FakeBackend] = []

    def is_idle(self) -> bool:
        """Returns true if no call waits, so that no timeout is pending."""
        return not self._queue

    def acquire(self, client: FakeBackend, command: AcquireCommand) -> None:
        """Acquires locks, at once or after waiting in the queue."""
        error = self._find_rejection(client, command)
        if error is not None:
            return command.receiver.on_result(error)
        for target in command.params.targets:
            lock, (_, limit) = lock_of(target), _weight_and_limit(target)
            self._limits[lock] = self._limit_in_use(lock) or limit or 1
        waiter = _Waiter(client, command, clock.now() + command.wait)
        self._queue.append(waiter)
        self._grant_waiters()
        if command.wait <= 0 and waiter in self._queue:
            self._reject(waiter, Held)

    def reject_next(self, lock: LockName, error: AcquireError) -> None:
        """Fails the next acquire of this lock with ``error``."""
        self._rejections.setdefault(lock, []).append(error)

    def set_limit(self, client: FakeBackend, lock: LockName, limit: int | None) -> int | Error | None:
        """Sets or removes the limit of a lock. Returns the previous limit, None if there was none, or an error."""
        if client in self._closed_clients:
            return Closed()
        if not limit:
            return self._set_limits.pop(lock, None)
        previous_limit = self._limit_in_use(lock)
        if previous_limit == _EXCLUSIVE_WEIGHT:
            return LimitMismatch(_MISMATCH_MESSAGE)
        self._limits[lock] = self._set_limits[lock] = limit
        for waiter in [waiter for waiter in self._queue if waiter.weight_of(lock) > limit]:
            self._queue.remove(waiter)
            waiter.command.receiver.on_result(LimitMismatch(_MISMATCH_MESSAGE))
        self._grant_waiters()
        return previous_limit

    def _find_rejection(self, client: FakeBackend, command: AcquireCommand) -> Error | None:
        """Returns the error of a call that can never be granted, or None."""
        if client in self._closed_clients:
            return Closed()
        loss = command.under.validity.loss() if command.under is not None else None
        if loss is not None:
            return LeaseLost(loss)
        for target in command.params.targets:
            lock, (weight, limit) = lock_of(target), _weight_and_limit(target)
            if self._rejections.get(lock):
                return self._rejections[lock].pop(0)
            in_use = self._limit_in_use(lock)
            if limit == 0 or (lock in self._set_limits and limit != _EXCLUSIVE_WEIGHT):
                limit = in_use or 1
            own_holds = [
                hold
                for hold in self._holds.get(lock, [])
                if command.under is not None and hold.lease_id == command.under.lease_id
            ]
            if (in_use is not None and in_use != limit) or (weight > limit and not own_holds):
                return LimitMismatch(_MISMATCH_MESSAGE)
            if own_holds and own_holds[0].weight < weight:
                return UpgradeDenied(_UPGRADE_MESSAGE)
        return None

    def _limit_in_use(self, lock: LockName) -> int | None:
        """Returns the limit of a lock, or None if the lock is idle and has no set limit."""
        if self.holders(lock) or self.queue_length(lock):
            return self._limits[lock]
        return self._set_limits.get(lock)

    def cancel(self, request_id: str) -> None:
        """Removes a call from the queue."""
        self._queue = [waiter for waiter in self._queue if waiter.command.params.request_id != request_id]
        self._grant_waiters()

    def release(self, lease_id: str, scope: AcquireScope, callback: ReleaseCallback | None) -> None:
        """Releases the locks of one acquire."""
        for lock in scope.locks:
            for hold in self._holds.get(lock, []):
                if hold.lease_id == lease_id:
                    hold.entries.pop(scope.request_id, None)
            self._holds[lock] = [hold for hold in self._holds.get(lock, []) if hold.entries]
        held_ids = {hold.lease_id for holds in self._holds.values() for hold in holds}
        for ended_id in [known_id for known_id in self._leases if known_id not in held_ids]:
            self._leases.pop(ended_id)[1].end(Loss(LostReason.RELEASED))
        self._grant_waiters()
        if callback is not None:
            callback(None)

    def lose(self, lock: LockName, loss: Loss) -> int:
        """Ends all leases that hold a lock. Returns the number of these leases."""
        lost = {hold.lease_id for hold in self._holds.get(lock, [])}
        self._end_leases(lost, loss)
        return len(lost)

    def close(self, client: FakeBackend, callback: Callable[[], None]) -> None:
        """Releases the leases of a client that is shut down, and fails its waiting calls."""
        self._closed_clients.append(client)
        removed = [waiter for waiter in self._queue if waiter.client is client]
        self._queue = [waiter for waiter in self._queue if waiter.client is not client]
        for waiter in removed:
            waiter.command.receiver.on_result(Closed())
        own_lease_ids = {lease_id for lease_id, (owner_client, _) in self._leases.items() if owner_client is client}
        self._end_leases(own_lease_ids, Loss(LostReason.CLOSED))
        callback()

    def _end_leases(self, lease_ids: set[str], loss: Loss) -> None:
        for lock, holds in self._holds.items():
            self._holds[lock] = [hold for hold in holds if hold.lease_id not in lease_ids]
        for lease_id in lease_ids:
            _, validity = self._leases.pop(lease_id)
            validity.end(loss)
        self._grant_waiters()

    def holders(self, lock: LockName) -> list[Holder]:
        """Returns the holders of a lock."""
        return [hold.holder for hold in self._holds.get(lock, [])]

    def _used(self, lock: LockName) -> int:
        return sum(hold.weight for hold in self._holds.get(lock, []))

    def queue_length(self, lock: LockName) -> int:
        """Returns the number of calls that wait for a lock."""
        return sum(lock in waiter.locks for waiter in self._queue)

    def get_lock_state(self, client: FakeBackend, lock: LockName) -> LockState | Error | None:
        """Returns the state of a lock, None if it is idle without a set limit, or the error of a closed client."""
        if client in self._closed_clients:
            return Closed()
        limit = self._limit_in_use(lock)
        if limit is None:
            return None
        holders = self.holders(lock)
        last_fencing_token = max((holder.fencing_token for holder in holders), default=self._last_token)
        usage = None
        if limit != _EXCLUSIVE_WEIGHT:
            usage = PermitUsage(limit, self._used(lock), lock in self._set_limits)
        return LockState(holders, self.queue_length(lock), last_fencing_token, permit_usage=usage)

    def expire_waiters(self, now: float) -> None:
        """Fails the calls whose wait has ended."""
        for waiter in [waiter for waiter in self._queue if now >= waiter.deadline]:
            self._reject(waiter, WaitTimeout)

    def _reject(self, waiter: _Waiter, error_class: Callable[[Contention], Error]) -> None:
        self._queue.remove(waiter)
        holders = [holder for lock in waiter.locks for holder in self.holders(lock)]
        names = ", ".join(str(lock) for lock in waiter.locks)
        waiting = max(self.queue_length(lock) for lock in waiter.locks)
        waiter.command.receiver.on_result(error_class(Contention(f"{names} is held", holders[:5], waiting)))
        self._grant_waiters()

    def _grant_waiters(self) -> None:
        """Grants the calls that can be granted, in the order of the queue."""
        blocked_locks: set[LockName] = set()
        for waiter in list(self._queue):
            under = waiter.command.under
            loss = under.validity.loss() if under is not None else None
            if loss is not None:
                self._queue.remove(waiter)
                waiter.command.receiver.on_result(LeaseLost(loss))
            elif not blocked_locks.intersection(waiter.locks) and self._has_room(waiter):
                self._queue.remove(waiter)
                self._grant(waiter)
            else:
                blocked_locks.update(waiter.locks)
        for waiter in self._queue:
            self._notify_position(waiter)

    def _has_room(self, waiter: _Waiter) -> bool:
        for target in waiter.command.params.targets:
            lock, (weight, _) = lock_of(target), _weight_and_limit(target)
            if any(hold.lease_id == waiter.under for hold in self._holds.get(lock, [])):
                continue
            if self._used(lock) + weight > self._limits[lock]:
                return False
        return True

    def _grant(self, waiter: _Waiter) -> None:
        command = waiter.command
        if command.under is not None:
            lease_id, validity = command.under.lease_id, command.under.validity
        else:
            lease_id, validity = uuid.uuid4().hex, LeaseValidity(math.inf, _TTL_DEFAULT)
            self._leases[lease_id] = (waiter.client, validity)
        tokens = [(lock_of(target), self._add_entry(lease_id, target, command)) for target in command.params.targets]
        # If the caller no longer waits, the handle is dropped, which releases the locks.
        command.receiver.on_result(waiter.client.create_handle(lease_id, command, tokens, validity))

    def _add_entry(self, lease_id: str, target: pb.LockTarget, command: AcquireCommand) -> int:
        weight, _ = _weight_and_limit(target)
        holds = self._holds.setdefault(lock_of(target), [])
        for hold in holds:
            if hold.lease_id == lease_id:
                hold.entries[command.params.request_id] = weight
                return hold.holder.fencing_token
        self._last_token += 1
        owner = command.params.owner
        ttl = _TTL_DEFAULT if command.params.ttl is None else command.params.ttl
        now = datetime.now(timezone.utc)
        holder = Holder(lease_id, owner.id, owner.reason, self._last_token, now, ttl)
        holds.append(_Hold(lease_id, holder, {command.params.request_id: weight}))
        return self._last_token

    def _notify_position(self, waiter: _Waiter) -> None:
        lock = waiter.locks[0]
        waiters_before = self._queue[: self._queue.index(waiter)]
        position = 1 + sum(lock in other.locks for other in waiters_before)
        queue_position = QueuePosition(position, self.queue_length(lock), self.holders(lock))
        if queue_position != waiter.notified:
            waiter.notified = queue_position
            waiter.command.receiver.on_queue_position(queue_position)
