"""Giving back: the whole lease with its last grip, before that what one grip has."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import grpc

from leasehold._core import clock, reading
from leasehold._core.link import About, Kind
from leasehold._core.moves import jittered
from leasehold._core.order import Answer, Entry
from leasehold.errors import Error, LeaseLost, Loss, LostReason, Refused, Unconfirmed
from leasehold.v1 import lock_service_pb2 as pb

if TYPE_CHECKING:
    from leasehold._core.keeper import Keeper
    from leasehold._core.leases import Owned

log = logging.getLogger("leasehold")

_REPEAT_PAUSE = 0.1


class Release:
    """The whole lease is being given back."""

    def __init__(self, answers: list[Answer], gone_at: float) -> None:
        self.answers = answers
        #: When the store has forgotten it, whatever became of the release.
        self.gone_at = gone_at

    def answer(self, result: Error | None) -> None:
        """Tells everybody who asked for it."""
        for answer in self.answers:
            answer(result)

    def lost(self, loss: Loss) -> None:
        """The broker says that the lease is over. It was given back within its validity, so the reason
        is this release or an earlier sending of it, unless the reason says otherwise.
        """
        is_released = loss.reason in (LostReason.RELEASED, LostReason.STORE_LOST)
        self.answer(None if is_released else LeaseLost(loss))


class Part:
    """What one grip of several gives back, lock by lock."""

    def __init__(self, entry: Entry, answer: Answer | None) -> None:
        self.entry = entry
        self.answer = answer

    def end(self, result: Error | None) -> None:
        """Tells who asked for it."""
        if self.answer is not None:
            self.answer(result)


class Releases:
    """The releases of one stream's leases."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._last_part = 0
        #: Who waits for a release while the client is shut down.
        self.closing: list[Answer] = []
        #: Number of unary releases under way.
        self.alone = 0

    def give_back(self, lease_id: str, entry: Entry, answer: Answer | None) -> None:
        """A grip gives back what it has."""
        owned = self._keeper.leases.all.get(lease_id)
        if owned is None:
            # It was lost before; whoever asks knows why.
            if answer is not None:
                answer(LeaseLost(Loss(LostReason.CLOSED)))
            return self.give_back_lost(lease_id)
        owned.grips -= 1
        answers = [] if answer is None else [answer]
        if owned.release is not None:
            # A call under the lease was granted while all of it was given back.
            owned.release.answers.extend(answers)
            return
        if owned.grips > 0:
            self._last_part += 1
            owned.parts[self._last_part] = Part(entry, answer)
            return self.send_part(lease_id, self._last_part)
        if owned.trust is not None:
            owned.trust.end(Loss(LostReason.RELEASED))
        parts = [part.answer for part in owned.parts.values() if part.answer is not None]
        owned.parts.clear()
        gone_at = max(clock.now(), owned.valid_until) + owned.ttl / 2
        owned.release = Release(parts + answers, gone_at)
        self.send(lease_id)

    def give_back_lost(self, lease_id: str) -> None:
        """Drops one grip of a lost lease.

        After the last one, releases the lease at the broker so that the next waiter need not wait for its expiry.
        """
        leases = self._keeper.leases
        owned = leases.lost.get(lease_id)
        if owned is None:
            return
        owned.grips -= 1
        if owned.grips > 0:
            return
        owned.release = Release([], max(clock.now(), owned.valid_until) + owned.ttl / 2)
        leases.all[lease_id] = leases.lost.pop(lease_id)
        self.send(lease_id)

    def give_back_all_lost(self) -> None:
        """The client is shut down, and what it did under leases that are lost is over."""
        for lease_id, owned in list(self._keeper.leases.lost.items()):
            owned.grips = 1
            self.give_back_lost(lease_id)

    def send(self, lease_id: str) -> None:
        """Sends a release: on the stream, or by itself for a lease that was on another one."""
        link, owned = self._keeper.link, self._keeper.leases.all.get(lease_id)
        if link is None or owned is None:
            return
        if owned.is_here:
            call_id = link.next_call()
            release = pb.HoldRelease(call_id=call_id, lease_id=lease_id)
            return link.call(About(Kind.RELEASE, lease_id), pb.HoldRequest(release=release), call_id)
        done = self._keeper.later(self._released_alone, lease_id)
        try:
            link.release(pb.ReleaseRequest(lease=owned.lease), done)
            self.alone += 1
        except ValueError:
            # The channel was closed a moment ago; the next stream takes the release up.
            log.debug("the stream broke before a release")

    def _released_alone(self, lease_id: str, call: Any) -> None:
        self.alone -= 1
        self._judge_alone(lease_id, call)
        self._keeper.close_link()

    def _judge_alone(self, lease_id: str, call: Any) -> None:
        error = call.exception() if not call.cancelled() else None
        if isinstance(error, grpc.RpcError):
            return self.refused(lease_id, reading.status(error))
        if call.cancelled():
            # Its connection was closed under it.
            return self.refused(lease_id, pb.Refused(code=grpc.StatusCode.CANCELLED.value[0]))
        self.released(lease_id)

    def released(self, lease_id: str) -> None:
        """A release is confirmed."""
        owned = self._keeper.leases.all.get(lease_id)
        if owned is not None and owned.release is not None:
            del self._keeper.leases.all[lease_id]
            owned.release.answer(None)

    def refused(self, lease_id: str, said: pb.Refused) -> None:
        """A release is not confirmed, for good or for now."""
        if reading.is_open(said):
            return self._keeper.put_off(jittered(_REPEAT_PAUSE), About(Kind.RELEASE, lease_id))
        owned = self._keeper.leases.all.get(lease_id)
        if owned is None or owned.release is None:
            return
        del self._keeper.leases.all[lease_id]
        why = reading.refused(said)
        if isinstance(why, LeaseLost):
            return owned.release.lost(why.loss)
        owned.release.answer(Refused(said.message))

    def unconfirmed(self, lease_id: str) -> None:
        """Nobody has confirmed a release while the lease could have lived."""
        release = self._keeper.leases.all.pop(lease_id).release
        if release is not None:
            release.answer(Unconfirmed())

    def send_part(self, lease_id: str, number: int) -> None:
        """Sends the release of the next lock of a part. Elsewhere than on its stream it would be refused."""
        link, owned = self._keeper.link, self._keeper.leases.all.get(lease_id)
        part = owned.parts.get(number) if owned is not None else None
        if link is None or owned is None or part is None or not owned.is_here:
            return
        call_id = link.next_call()
        release = pb.HoldRelease(
            call_id=call_id,
            lease_id=lease_id,
            lock=part.entry.locks[-1].proto(),
            request_id=part.entry.request_id,
        )
        link.call(About(Kind.RELEASE, lease_id, number), pb.HoldRequest(release=release), call_id)

    def part_released(self, lease_id: str, number: int, hold_count: int) -> None:
        """A lock of a part is given back, with so many entries of it left."""
        owned = self._keeper.leases.all.get(lease_id)
        part = owned.parts.get(number) if owned is not None else None
        if owned is None or part is None:
            return
        done = part.entry.locks.pop()
        if hold_count == 0:
            owned.drop_grant(done)
        if part.entry.locks:
            return self.send_part(lease_id, number)
        self._end_part(owned, number, None)

    def part_refused(self, lease_id: str, number: int, said: pb.Refused) -> None:
        """A lock of a part is not given back, for good or for now."""
        if reading.is_open(said):
            return self._keeper.put_off(jittered(_REPEAT_PAUSE), About(Kind.RELEASE, lease_id, number))
        owned = self._keeper.leases.all.get(lease_id)
        if owned is not None:
            self._end_part(owned, number, Refused(said.message))

    def _end_part(self, owned: Owned, number: int, result: Error | None) -> None:
        part = owned.parts.pop(number, None)
        if part is not None:
            part.end(result)

    def closed(self, is_closed: bool) -> None:
        """The stream was closed, with all that was on it, or could not be."""
        answers, self.closing = self.closing, []
        for answer in answers:
            answer(None if is_closed else Unconfirmed())
