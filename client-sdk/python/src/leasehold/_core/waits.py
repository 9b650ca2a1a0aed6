"""Calls without an answer: sent again on every stream until there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold._core import clock, reading
from leasehold._core.grip import Grip
from leasehold._core.link import About, Kind
from leasehold._core.moves import jittered
from leasehold._core.order import Ask, Place
from leasehold.errors import (
    AcquireError,
    Closed,
    Error,
    Held,
    LeaseLost,
    Loss,
    LostReason,
    Unauthenticated,
    Unavailable,
    WaitTimeout,
)
from leasehold.v1 import lock_service_pb2 as pb
from leasehold.v1 import types_pb2 as types

if TYPE_CHECKING:
    from leasehold._core.keeper import Keeper

#: How much longer than it may wait a call of unknown outcome is repeated.
_REPEAT_LIMIT = 5.0
#: How soon a call is repeated that was refused for now.
_REPEAT_PAUSE = 0.2
#: How soon another broker is tried when this one does not reach its store.
_STORE_PAUSE = 2.0
#: The longest pause between heartbeats while a call waits.
_WAITING = 2.0
#: The shortest ttl that a broker grants.
_TTL_MIN = 1.0


class Wait:
    """A call without an answer."""

    def __init__(self, ask: Ask) -> None:
        self.call = ask.call
        self.under = ask.under
        #: How long it may wait in line.
        self.until = clock.now() + ask.wait
        self.attach_number = 0
        #: As which it was sent last; 0: not on this stream.
        self.call_id = 0
        #: Why it has no answer yet.
        self.why: AcquireError | None = None
        #: None: the caller is gone.
        self.reply: object | None = ask.reply
        self._ask = ask
        ttl = 3 * _WAITING if ask.call.ttl is None else max(ask.call.ttl, _TTL_MIN)
        #: How often heartbeats are to be sent while it waits.
        self.interval = min(ttl / 3, _WAITING)

    def answer(self, result: Grip | Error) -> None:
        """Answers, if the caller is there still. What it got and does not take gives itself back."""
        if self.reply is not None:
            self.reply = None
            self._ask.reply.done(result)

    def place(self, place: Place) -> None:
        """Tells the caller where it stands."""
        if self.reply is not None:
            self._ask.reply.place(place)

    def refused(self, said: pb.Refused) -> AcquireError:
        """Why it has got nothing."""
        error = reading.refused(said)
        if isinstance(error, Held) and self._ask.wait > 0:
            # It was late when it was repeated, and so was asked without waiting: to its caller it has waited.
            return WaitTimeout(error.busy)
        return error

    def is_for(self, lease_id: str) -> bool:
        """Whether it is a call under this lease."""
        return self.under is not None and self.under.lease_id == lease_id


class Waits:
    """The calls of one stream, by request."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self.all: dict[str, Wait] = {}

    def ask(self, ask: Ask) -> None:
        """One more call."""
        if self._keeper.is_over:
            return ask.reply.done(Closed())
        self.all[ask.call.request_id] = Wait(ask)
        self.send(ask.call.request_id)

    def send(self, request_id: str) -> None:
        """Sends a call, if it can be sent now. Under a lease that is only once that is on this stream."""
        link, wait = self._keeper.link, self.all.get(request_id)
        if link is None or wait is None:
            return
        under: types.Lease | None = None
        if wait.under is not None:
            owned = self._keeper.leases.all.get(wait.under.lease_id)
            if owned is None or owned.release is not None:
                loss = wait.under.trust.loss() or Loss(LostReason.RELEASED)
                del self.all[request_id]
                return wait.answer(LeaseLost(loss))
            if not owned.is_here:
                return
            under, wait.attach_number = owned.lease, owned.attach_number
        else:
            wait.attach_number += 1
        # A call that is late already still asks once, without waiting.
        left = max(0.0, wait.until - clock.now())
        request = wait.call.message(left, under)
        wait.call_id = link.next_call()
        ids = {"call_id": wait.call_id, "attach_number": wait.attach_number}
        trace = wait.call.traceparent
        if isinstance(request, pb.AcquireRequest):
            acquire = pb.HoldAcquire(request=request, traceparent=trace, **ids)
            message = pb.HoldRequest(acquire=acquire)
        else:
            several = pb.HoldAcquireAll(request=request, traceparent=trace, **ids)
            message = pb.HoldRequest(acquire_all=several)
        link.call(About(Kind.ACQUIRE, request_id), message, wait.call_id)

    def send_under(self, lease_id: str) -> None:
        """What could not be sent before, since its lease was not here. If that is over now, so are they."""
        waiting = [key for key, wait in self.all.items() if wait.is_for(lease_id) and not wait.call_id]
        for request_id in waiting:
            self.send(request_id)

    def cancel(self, request_id: str) -> None:
        """The caller is gone: the broker answers with a refusal, or with a grant that is given back."""
        wait = self.all.get(request_id)
        if wait is None:
            return self._keeper.leases.cancel_unborn(request_id)
        wait.reply = None
        if self._keeper.link is not None and wait.call_id:
            cancel = pb.CancelAcquire(call_id=wait.call_id)
            self._keeper.link.send(pb.HoldRequest(cancel=cancel))
        else:
            del self.all[request_id]

    def queued(self, queued: pb.Queued) -> None:
        """Where a call stands."""
        about = self._keeper.link.asked(queued.call_id) if self._keeper.link else None
        wait = self.all.get(about.key) if about is not None and about.kind is Kind.ACQUIRE else None
        if wait is not None:
            holders = [reading.holder(one) for one in queued.holders]
            wait.place(Place(queued.position, queued.queue_length, holders))

    def granted(self, granted: pb.Granted) -> None:
        """A call has got its locks."""
        link = self._keeper.link
        answered = link.answered(granted.call_id) if link else None
        if link is None or answered is None or answered[0].kind is not Kind.ACQUIRE:
            return
        wait = self.all.pop(answered[0].key, None)
        if wait is None:
            # An earlier sending of the call was answered, too; its holder decides.
            return
        beat = link.beat_sent(granted.as_of_sequence)
        # The store was asked after both; after a pause the heartbeat is the older one.
        sent = answered[1] if beat is None else max(answered[1], beat)
        if wait.under is None:
            return self._keeper.leases.own(granted.lease, wait, sent)
        grip = self._keeper.leases.enter(granted.lease, wait)
        wait.answer(LeaseLost(Loss(LostReason.EXPIRED)) if grip is None else grip)

    def refused(self, request_id: str, said: pb.Refused) -> None:
        """A call has got nothing, for good or for now."""
        wait = self.all.get(request_id)
        if wait is None or wait.call_id != said.call_id:
            return
        wait.call_id = 0
        if wait.reply is None or not reading.is_open(said):
            del self.all[request_id]
            return wait.answer(wait.refused(said))
        wait.why = reading.refused(said)
        self._keeper.put_off(jittered(_REPEAT_PAUSE), About(Kind.ACQUIRE, request_id))
        # A broker that goes away, or does not reach its store, is not the one to ask again.
        is_one_of_many = len(self._keeper.brokers.endpoints) > 1
        if said.reason == types.ERROR_REASON_DRAINING:
            self._keeper.moves.leave(0.0)
        elif said.reason == types.ERROR_REASON_STORE_UNAVAILABLE and is_one_of_many:
            self._keeper.moves.leave(jittered(_STORE_PAUSE))

    def watch(self, now: float) -> None:
        """Nobody has answered these calls for too long."""
        late = [
            (key, wait)
            for key, wait in self.all.items()
            if wait.reply is not None and now >= wait.until + _REPEAT_LIMIT
        ]
        for request_id, wait in late:
            moves = self._keeper.moves
            why_not = moves.why_not() if self._keeper.link is None else "the broker does not answer"
            wait.answer(wait.why or Unavailable(why_not))
            self.cancel(request_id)

    def deny(self, why: str) -> None:
        """No broker accepts the credential: calls are told so instead of being sent on and on."""
        denied, self.all = self.all, {}
        for wait in denied.values():
            wait.answer(Unauthenticated(why))

    def off_stream(self) -> None:
        """The stream is gone, and with it every call of somebody who is gone, too: the broker gives up
        what does not come again.
        """
        self.all = {key: wait for key, wait in self.all.items() if wait.reply is not None}
        for wait in self.all.values():
            wait.call_id = 0

    def take_up(self) -> None:
        """Brings every call to a new stream."""
        for request_id in list(self.all):
            self.send(request_id)
