"""The locks of a fake broker: who holds them, and who waits in which order."""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Callable

from leasehold._core import clock
from leasehold._core.order import Answer, Ask, Entry, LockState, Place
from leasehold._core.trust import Trust
from leasehold.errors import (
    AcquireError,
    Busy,
    Closed,
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

#: All of a lock: an exclusive holder takes it, a shared one takes 1 of it.
_WHOLE = 2**30
_TTL_DEFAULT = 10.0
_MISMATCH = "another limit or mode is in use on this lock, or it has not so many permits"
_UPGRADE = "the lease shares the lock, and cannot have it alone"


@dataclass
class _Hold:
    """A lock in the hands of a lease."""

    lease_id: str
    limit: int
    holder: Holder
    #: One for each entry, with what it weighs.
    entries: dict[str, int] = field(default_factory=dict)

    @property
    def weight(self) -> int:
        """As much as its strongest entry."""
        return max(self.entries.values(), default=0)


@dataclass
class _Waiter:
    client: FakeBackend
    ask: Ask
    until: float
    told: Place | None = None

    @property
    def locks(self) -> list[LockName]:
        """What it waits for."""
        return [lock_of(one) for one in self.ask.call.targets]

    @property
    def under(self) -> str | None:
        """The lease that it is under."""
        return self.ask.under.lease_id if self.ask.under is not None else None


def _weight(one: pb.LockTarget) -> tuple[int, int]:
    """What a target takes of its lock, and how much that has; 0: as much as is in use."""
    if one.mode == pb.LOCK_MODE_SHARED:
        return 1, _WHOLE
    if one.mode == pb.LOCK_MODE_SEMAPHORE:
        return max(one.permits, 1), one.limit
    return _WHOLE, _WHOLE


class Locks:
    """Touched by one thread only."""

    def __init__(self) -> None:
        self._held: dict[LockName, list[_Hold]] = {}
        # Whose it is, and whether it is over.
        self._leases: dict[str, tuple[FakeBackend, Trust]] = {}
        self._line: list[_Waiter] = []
        self._last_token = 0
        self._refusals: dict[LockName, list[AcquireError]] = {}
        self._closed: list[FakeBackend] = []

    def is_idle(self) -> bool:
        """Whether the time is of no interest."""
        return not self._line

    def acquire(self, client: FakeBackend, ask: Ask) -> None:
        """Takes locks, at once or in its turn."""
        error = self._never(client, ask)
        if error is not None:
            return ask.reply.done(error)
        waiter = _Waiter(client, ask, clock.now() + ask.wait)
        self._line.append(waiter)
        self._settle()
        if ask.wait <= 0 and waiter in self._line:
            self._refuse(waiter, Held)

    def refuse_next(self, lock: LockName, error: AcquireError) -> None:
        """The next call for this lock gets this answer."""
        self._refusals.setdefault(lock, []).append(error)

    def _never(self, client: FakeBackend, ask: Ask) -> Error | None:
        """Why a call can never be granted."""
        if client in self._closed:
            return Closed()
        loss = ask.under.trust.loss() if ask.under is not None else None
        if loss is not None:
            return LeaseLost(loss)
        for one in ask.call.targets:
            lock, (weight, limit) = lock_of(one), _weight(one)
            if self._refusals.get(lock):
                return self._refusals[lock].pop(0)
            holds = self._held.get(lock, [])
            in_use = holds[0].limit if holds else None
            limit = limit or in_use or 1
            if (in_use is not None and in_use != limit) or weight > limit:
                return LimitMismatch(_MISMATCH)
            own = [hold for hold in holds if ask.under is not None and hold.lease_id == ask.under.lease_id]
            if own and own[0].weight < weight:
                return UpgradeDenied(_UPGRADE)
        return None

    def cancel(self, request_id: str) -> None:
        """The caller is gone."""
        self._line = [one for one in self._line if one.ask.call.request_id != request_id]
        self._settle()

    def release(self, lease_id: str, entry: Entry, answer: Answer | None) -> None:
        """Gives back what one acquire has got."""
        for lock in entry.locks:
            for hold in self._held.get(lock, []):
                if hold.lease_id == lease_id:
                    hold.entries.pop(entry.request_id, None)
            self._held[lock] = [hold for hold in self._held.get(lock, []) if hold.entries]
        live = {hold.lease_id for holds in self._held.values() for hold in holds}
        for gone in [one for one in self._leases if one not in live]:
            self._leases.pop(gone)[1].end(Loss(LostReason.RELEASED))
        self._settle()
        if answer is not None:
            answer(None)

    def lose(self, lock: LockName, loss: Loss) -> int:
        """Takes a lock away from everybody who holds it; how many leases are over."""
        lost = {hold.lease_id for hold in self._held.get(lock, [])}
        self._end(lost, loss)
        return len(lost)

    def close(self, client: FakeBackend, done: Callable[[], None]) -> None:
        """A client is shut down: what it holds is free, and its calls are over."""
        self._closed.append(client)
        gone = [waiter for waiter in self._line if waiter.client is client]
        self._line = [waiter for waiter in self._line if waiter.client is not client]
        for waiter in gone:
            waiter.ask.reply.done(Closed())
        own = {lease_id for lease_id, (whose, _) in self._leases.items() if whose is client}
        self._end(own, Loss(LostReason.CLOSED))
        done()

    def _end(self, gone: set[str], loss: Loss) -> None:
        for lock, holds in self._held.items():
            self._held[lock] = [hold for hold in holds if hold.lease_id not in gone]
        for lease_id in gone:
            _, trust = self._leases.pop(lease_id)
            trust.end(loss)
        self._settle()

    def holders(self, lock: LockName) -> list[Holder]:
        """Who holds a lock."""
        return [hold.holder for hold in self._held.get(lock, [])]

    def queue_length(self, lock: LockName) -> int:
        """How many calls wait for a lock."""
        return sum(lock in waiter.locks for waiter in self._line)

    def look(self, client: FakeBackend, lock: LockName) -> LockState | Error | None:
        """What a client sees of a lock."""
        if client in self._closed:
            return Closed()
        holders, waiting = self.holders(lock), self.queue_length(lock)
        if not holders and not waiting:
            return None
        newest = max((one.fencing_token for one in holders), default=self._last_token)
        return LockState(holders, waiting, newest)

    def time_out(self, now: float) -> None:
        """Ends the waits whose time has passed."""
        for waiter in [one for one in self._line if now >= one.until]:
            self._refuse(waiter, WaitTimeout)

    def _refuse(self, waiter: _Waiter, error: Callable[[Busy], Error]) -> None:
        self._line.remove(waiter)
        holders = [holder for lock in waiter.locks for holder in self.holders(lock)]
        names = ", ".join(str(lock) for lock in waiter.locks)
        waiting = max(self.queue_length(lock) for lock in waiter.locks)
        waiter.ask.reply.done(error(Busy(f"{names} is held", holders[:5], waiting)))
        self._settle()

    def _settle(self) -> None:
        """Grants what can be granted, in the order of the line."""
        wanted: set[LockName] = set()
        for waiter in list(self._line):
            under = waiter.ask.under
            loss = under.trust.loss() if under is not None else None
            if loss is not None:
                self._line.remove(waiter)
                waiter.ask.reply.done(LeaseLost(loss))
            elif not wanted.intersection(waiter.locks) and self._fits(waiter):
                self._line.remove(waiter)
                self._grant(waiter)
            else:
                wanted.update(waiter.locks)
        for waiter in self._line:
            self._tell_place(waiter)

    def _fits(self, waiter: _Waiter) -> bool:
        for one in waiter.ask.call.targets:
            weight, limit = _weight(one)
            holds = self._held.get(lock_of(one), [])
            if any(hold.lease_id == waiter.under for hold in holds):
                continue
            limit = holds[0].limit if holds else limit or 1
            if sum(hold.weight for hold in holds) + weight > limit:
                return False
        return True

    def _grant(self, waiter: _Waiter) -> None:
        ask = waiter.ask
        if ask.under is not None:
            lease_id, trust = ask.under.lease_id, ask.under.trust
        else:
            lease_id, trust = uuid.uuid4().hex, Trust(math.inf, _TTL_DEFAULT)
            self._leases[lease_id] = (waiter.client, trust)
        tokens = [(lock_of(one), self._enter(lease_id, one, ask)) for one in ask.call.targets]
        # A caller that is gone drops it, and so gives it back.
        ask.reply.done(waiter.client.grip(lease_id, ask, tokens, trust))

    def _enter(self, lease_id: str, one: pb.LockTarget, ask: Ask) -> int:
        weight, limit = _weight(one)
        holds = self._held.setdefault(lock_of(one), [])
        for hold in holds:
            if hold.lease_id == lease_id:
                hold.entries[ask.call.request_id] = weight
                return hold.holder.fencing_token
        self._last_token += 1
        owner = ask.call.owner
        ttl = _TTL_DEFAULT if ask.call.ttl is None else ask.call.ttl
        now = datetime.now(timezone.utc)
        holder = Holder(lease_id, owner.id, owner.reason, self._last_token, now, ttl)
        limit = holds[0].limit if holds else limit or 1
        holds.append(_Hold(lease_id, limit, holder, {ask.call.request_id: weight}))
        return self._last_token

    def _tell_place(self, waiter: _Waiter) -> None:
        lock = waiter.locks[0]
        before = self._line[: self._line.index(waiter)]
        position = 1 + sum(lock in other.locks for other in before)
        place = Place(position, self.queue_length(lock), self.holders(lock))
        if place != waiter.told:
            waiter.told = place
            waiter.ask.reply.place(place)
