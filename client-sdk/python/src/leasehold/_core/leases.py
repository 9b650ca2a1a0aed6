"""Leases: kept by heartbeats, trusted no longer than was confirmed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from leasehold._core import clock, reading
from leasehold._core.grip import Grip
from leasehold._core.link import About, Kind
from leasehold._core.moves import jittered
from leasehold._core.order import Call, Entry
from leasehold._core.releases import Part, Release
from leasehold._core.trust import Trust
from leasehold._core.waits import Wait
from leasehold.errors import Closed, LeaseLost, Loss, LostReason, Unavailable
from leasehold.target import LockName, lock_of
from leasehold.v1 import lock_service_pb2 as pb
from leasehold.v1 import types_pb2 as types

if TYPE_CHECKING:
    from leasehold._core.keeper import Keeper

log = logging.getLogger("leasehold")

_REPEAT_PAUSE = 0.1
_TOO_LATE = "the lock was granted so late that nobody could rely on it"


class Owned:
    """A lease of the stream, or on its way to the next one."""

    def __init__(self, lease: types.Lease, wait: Wait, sent: float) -> None:
        self.lease = lease
        self.ttl = reading.seconds(lease.ttl)
        self.valid_until = sent + self.ttl
        self.attach_number = wait.attach_number
        self.is_here = True
        self.granted_at = clock.now()
        #: When it came to this stream from another one.
        self.came_at: float | None = None
        #: What its holders trust; None until it is handed out.
        self.trust: Trust | None = None
        #: The call that it was granted to, while too little of its validity is known to hand it out.
        self.unborn: Wait | None = wait
        #: Grips that have not given back what they have.
        self.grips = 1
        self.release: Release | None = None
        self.parts: dict[int, Part] = {}
        self._interval = reading.seconds(lease.heartbeat_interval) or self.ttl / 3

    @property
    def interval(self) -> float:
        """How often it needs heartbeats."""
        return min(self._interval, self.ttl / 3)

    def is_old(self, now: float) -> bool:
        """Whether its validity counts from so long ago that a heartbeat is due."""
        return now >= self.valid_until - self.ttl + self.interval

    def is_due(self, now: float) -> bool:
        """Whether its time has passed."""
        if self.release is not None:
            return now >= self.release.gone_at
        if self.trust is None:
            return now > self.granted_at + self.ttl
        return not self.trust.is_valid()

    def merge(self, answer: types.Lease, call: Call) -> None:
        """Merges the grants of the call's own locks; the answer may omit grants added by other calls."""
        asked = call.locks()
        others = [grant for grant in self.lease.grants if lock_of(grant.target) not in asked]
        own = [grant for grant in answer.grants if lock_of(grant.target) in asked]
        del answer.grants[:]
        answer.grants.extend(others + own)
        self.lease = answer

    def drop_grant(self, gone: LockName) -> None:
        """It has that lock no more."""
        kept = [grant for grant in self.lease.grants if lock_of(grant.target) != gone]
        del self.lease.grants[:]
        self.lease.grants.extend(kept)

    def over(self, loss: Loss) -> None:
        """Nobody may rely on it any more."""
        if self.trust is not None:
            self.trust.end(loss)
        if self.unborn is not None:
            self.unborn.answer(LeaseLost(loss))


class Leases:
    """The leases of one stream, by their ids."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self.all: dict[str, Owned] = {}
        #: The lost leases whose work has not stopped yet, as long as the store may still have them.
        self.lost: dict[str, Owned] = {}

    def own(self, lease: types.Lease, wait: Wait, sent: float) -> None:
        """Takes on the lease that was granted to a call, with validity since that moment."""
        self.all[lease.lease_id] = Owned(lease, wait, sent)
        self._hand_out(lease.lease_id)

    def enter(self, lease: types.Lease, wait: Wait) -> Grip | None:
        """What a call under a lease has added to it. None: the lease is over."""
        owned = self.all.get(lease.lease_id)
        if owned is None or owned.trust is None:
            # It is on this stream again, and must not be renewed.
            self._detach(lease.lease_id)
            return None
        owned.grips += 1
        owned.merge(lease, wait.call)
        return self._grip(owned, owned.trust, wait.call)

    def cancel_unborn(self, request_id: str) -> None:
        """The caller of a lease that is not handed out yet is gone."""
        for lease_id, owned in list(self.all.items()):
            if owned.unborn is not None and owned.unborn.call.request_id == request_id:
                owned.unborn = None
                entry = Entry(request_id)
                self._keeper.releases.give_back(lease_id, entry, None)

    def _grip(self, owned: Owned, trust: Trust, call: Call) -> Grip:
        asked = call.locks()
        grants = [(lock_of(grant.target), grant.fencing_token) for grant in owned.lease.grants]
        tokens = [(lock, token) for lock, token in grants if lock in asked]
        alive = self._keeper.core.handle()
        return Grip(owned.lease.lease_id, tokens, call.request_id, trust, self._keeper, alive)

    def _hand_out(self, lease_id: str) -> None:
        # For the first time, if half of its validity is left. Otherwise the next heartbeat does, which is due soon.
        owned = self.all[lease_id]
        if clock.now() + owned.ttl / 2 > owned.valid_until:
            return
        wait, owned.unborn = owned.unborn, None
        if wait is not None:
            owned.trust = Trust(owned.valid_until, owned.ttl)
            wait.answer(self._grip(owned, owned.trust, wait.call))

    def acknowledged(self, ack: pb.HeartbeatAck) -> None:
        """A heartbeat has reached the store."""
        sent = self._keeper.link.beat_sent(ack.sequence) if self._keeper.link else None
        if sent is None:
            return
        for extended in ack.leases:
            self._extended(sent, extended)

    def _extended(self, sent: float, extended: pb.LeaseExtended) -> None:
        owned = self.all.get(extended.lease_id)
        if owned is None or extended.grant_count != len(owned.lease.grants):
            return
        owned.ttl = reading.seconds(extended.ttl)
        valid_until = sent + owned.ttl
        owned.valid_until = max(owned.valid_until, valid_until)
        if owned.unborn is not None:
            self._hand_out(extended.lease_id)
            return
        trust = owned.trust if owned.release is None else None
        if trust is not None and not trust.extend(valid_until, owned.ttl):
            self._lapse(extended.lease_id)

    def _lapse(self, lease_id: str) -> None:
        # Stops renewing a lease whose validity has passed. The lock is released only after the guarded work has
        # stopped; see _keep_lost.
        owned = self.all.pop(lease_id, None)
        if owned is None:
            return
        log.warning("lock lost: no renewal of lease %s was confirmed in time", lease_id)
        if owned.is_here:
            self._detach(lease_id)
        owned.over(Loss(LostReason.EXPIRED))
        self._end_parts(owned)
        self._keeper.waits.send_under(lease_id)
        self._keep_lost(lease_id, owned)

    def _detach(self, lease_id: str) -> None:
        link = self._keeper.link
        if link is not None:
            call_id = link.next_call()
            detach = pb.DetachLease(call_id=call_id, lease_id=lease_id)
            link.call(About(Kind.NOTHING), pb.HoldRequest(detach=detach), call_id)

    def attach(self, lease_id: str) -> None:
        """Puts a lease on this stream."""
        link, owned = self._keeper.link, self.all.get(lease_id)
        if link is None or owned is None:
            return
        if owned.release is not None:
            return self._keeper.releases.send(lease_id)
        if owned.trust is None or not owned.trust.is_valid():
            return self._lapse(lease_id)
        owned.attach_number += 1
        call_id = link.next_call()
        attach = pb.AttachLease(call_id=call_id, lease=owned.lease, attach_number=owned.attach_number)
        link.call(About(Kind.ATTACH, lease_id), pb.HoldRequest(attach=attach), call_id)

    def attached(self, attached: pb.LeaseAttached) -> None:
        """The lease is on this stream."""
        if self._keeper.link is not None:
            self._keeper.link.answered(attached.call_id)
        owned = self.all.get(attached.lease_id)
        if owned is None:
            # Lost on the way.
            return self._detach(attached.lease_id)
        owned.is_here, owned.came_at = True, clock.now()
        if owned.release is not None:
            return self._keeper.releases.send(attached.lease_id)
        for part in list(owned.parts):
            self._keeper.releases.send_part(attached.lease_id, part)
        self._keeper.waits.send_under(attached.lease_id)

    def attach_refused(self, lease_id: str, said: pb.Refused) -> None:
        """The lease is not on this stream, for good or for now."""
        if reading.is_open(said):
            return self._keeper.put_off(jittered(_REPEAT_PAUSE), About(Kind.ATTACH, lease_id))
        owned = self.all.get(lease_id)
        if owned is not None and owned.release is not None:
            self._keeper.releases.send(lease_id)
        elif owned is not None:
            self.lose(lease_id, reading.lost(said))

    def lose(self, lease_id: str, loss: Loss) -> None:
        """The broker says that a lease is over."""
        owned = self.all.pop(lease_id, None)
        if owned is None:
            return
        if owned.release is not None:
            return owned.release.lost(loss)
        log.warning("lock lost: lease %s: %s", lease_id, loss)
        owned.over(loss)
        self._end_parts(owned)
        self._keeper.waits.send_under(lease_id)
        if loss.reason in (LostReason.REVOKED, LostReason.MAX_HOLD):
            self._keep_lost(lease_id, owned)

    def _keep_lost(self, lease_id: str, owned: Owned) -> None:
        # The lock is released when the work under the lease has stopped, before the lease expires in the store.
        now = clock.now()
        # Afterwards a release is of no use. A program may keep a lost lease without ever releasing it, so such
        # entries are dropped here, or they would add up.
        useless = [one_id for one_id, one in self.lost.items() if now > one.valid_until + one.ttl / 2]
        for one_id in useless:
            del self.lost[one_id]
        is_held = owned.trust is not None
        owned.is_here, owned.unborn = False, None
        self.lost[lease_id] = owned
        if not is_held:
            self._keeper.releases.give_back_lost(lease_id)

    def close(self, lease_id: str, loss: Loss) -> None:
        """The client is shut down."""
        owned = self.all.pop(lease_id)
        if owned.unborn is not None:
            owned.unborn.answer(Closed())
            owned.unborn = None
        owned.over(loss)
        for part in owned.parts.values():
            if part.answer is not None:
                self._keeper.releases.closing.append(part.answer)
        if owned.release is not None:
            self._keeper.releases.closing.extend(owned.release.answers)

    def _end_parts(self, owned: Owned) -> None:
        loss = owned.trust.loss() if owned.trust is not None else None
        for part in owned.parts.values():
            part.end(LeaseLost(loss or Loss(LostReason.EXPIRED)))
        owned.parts.clear()

    def watch_validity(self, now: float) -> None:
        """Ends what ran out."""
        due = [lease_id for lease_id, owned in self.all.items() if owned.is_due(now)]
        for lease_id in due:
            owned = self.all[lease_id]
            if owned.release is not None:
                self._keeper.releases.unconfirmed(lease_id)
            elif owned.trust is None:
                self._not_born(lease_id)
            else:
                self._lapse(lease_id)

    def _not_born(self, lease_id: str) -> None:
        # No heartbeat has made enough of a late grant.
        wait = self.all.pop(lease_id).unborn
        self._detach(lease_id)
        if wait is not None:
            wait.answer(Unavailable(_TOO_LATE))

    def off_stream(self) -> None:
        """Nothing is on a stream any more."""
        for lease_id, owned in list(self.all.items()):
            owned.is_here = False
            if owned.unborn is not None:
                # It was not handed out: its call begins again.
                del self.all[lease_id]
                wait = owned.unborn
                wait.call_id = 0
                self._keeper.waits.all[wait.call.request_id] = wait

    def take_up(self) -> None:
        """Brings every lease to a new stream."""
        for lease_id in list(self.all):
            self.attach(lease_id)

    def beat_if_due(self, now: float) -> None:
        """Sends the heartbeat that the leases and waits need."""
        link = self._keeper.link
        if link is None:
            return
        here = [owned for owned in self.all.values() if owned.is_here]
        intervals = [owned.interval for owned in here]
        intervals += [wait.interval for wait in self._keeper.waits.all.values()]
        if not intervals:
            return
        last = link.last_beat()
        if last is None:
            return link.beat()
        # One soon for all that have just come here, or were granted late: their broker is busy.
        is_soon = any(
            (owned.came_at is not None and owned.came_at > last) or (owned.granted_at > last and owned.is_old(now))
            for owned in here
        )
        pause = min(intervals) / 4 if is_soon else min(intervals)
        if now >= last + pause:
            link.beat()

    def watch_silence(self, now: float) -> None:
        """A broker that answers no heartbeat for a quarter of a ttl may be gone, though its connection
        seems to live.
        """
        since = self._keeper.link.silent_since() if self._keeper.link else None
        patience = [owned.ttl / 4 for owned in self.all.values() if owned.is_here]
        if since is None or not patience or not self._keeper.moves.is_settled():
            return
        if now > since + min(patience):
            self._keeper.moves.leave(0.0)
