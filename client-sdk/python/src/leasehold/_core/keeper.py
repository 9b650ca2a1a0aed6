"""Keeps the leases and waits of one stream alive, on one broker after the other."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Callable

from leasehold._core import clock, reading
from leasehold._core.leases import Leases
from leasehold._core.link import About, Kind, Link
from leasehold._core.moves import Moves
from leasehold._core.order import Answer, Ask, Entry
from leasehold._core.releases import Releases
from leasehold._core.waits import Waits
from leasehold.errors import Closed, Loss, LostReason
from leasehold.v1 import lock_service_pb2 as pb

if TYPE_CHECKING:
    from leasehold._core.core import Core

log = logging.getLogger("leasehold")


class Keeper:
    """Everything but the three orders is done by the client's thread."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.brokers = core.brokers
        self.link: Link | None = None
        self.moves = Moves(self)
        self.waits = Waits(self)
        self.leases = Leases(self)
        self.releases = Releases(self)
        # What was refused for now, and when to send it again.
        self._again: list[tuple[float, About]] = []
        self._closed: Callable[[], None] | None = None
        self._close_by = 0.0
        self._close_link_by = 0.0
        self._is_link_closed = False
        self._is_over = False
        self.moves.leave(0.0)

    def acquire(self, ask: Ask) -> None:
        """Takes locks, and keeps their lease."""
        self.core.worker.post(self.waits.ask, ask)

    def cancel(self, request_id: str) -> None:
        """The caller is gone. What it got is given back."""
        self.core.worker.post(self.waits.cancel, request_id)

    def release(self, lease_id: str, entry: Entry, answer: Answer | None) -> None:
        """Gives back what one acquire has got."""
        self.core.worker.post(self.releases.give_back, lease_id, entry, answer)

    @property
    def is_over(self) -> bool:
        """Whether it takes nothing on any more."""
        return self._is_over

    def load(self) -> int:
        """How many leases and waits it has."""
        return len(self.waits.all) + len(self.leases.all)

    def is_idle(self) -> bool:
        """Whether the time is of no interest."""
        return not self.load() and self.moves.is_settled() and self._closed is None

    def put_off(self, pause: float, about: About) -> None:
        """Has something sent again after a while."""
        self._again.append((clock.now() + pause, about))

    def forget_put_off(self) -> None:
        """Nothing is sent again that was for another stream."""
        self._again.clear()

    def later(self, done: Callable[..., None], *args: Any) -> Callable[[Any], None]:
        """A callback for another thread, by which this one is told."""
        return lambda result: self.core.worker.post(done, *args, result)

    def hear(self, link: Link, response: pb.HoldResponse) -> None:
        """A message of the broker."""
        if link is not self.link:
            return
        link.heard()
        kind = response.WhichOneof("message")
        if kind == "ack":
            self.leases.acknowledged(response.ack)
        elif kind == "granted":
            self.waits.granted(response.granted)
        elif kind == "released":
            self._released(response.released)
        elif kind == "queued":
            self.waits.queued(response.queued)
        elif kind == "refused":
            self._refused(response.refused)
        elif kind == "attached":
            self.leases.attached(response.attached)
        elif kind == "ended":
            self.leases.lose(response.ended.lease_id, reading.ended(response.ended))
        elif kind == "reconnect":
            self.moves.leave(reading.seconds(response.reconnect.delay))
        elif kind == "done":
            answered = link.answered(response.done.call_id)
            if answered is not None and answered[0].kind is Kind.CREDENTIAL:
                link.shown(True)
        elif kind == "release_requested":
            asked = response.release_requested
            log.info("the broker asks for lease %s: %s", asked.lease_id, asked.message)
        # An unknown message is of a newer broker.

    def _released(self, released: pb.Released) -> None:
        answered = self.link.answered(released.call_id) if self.link else None
        if answered is None or answered[0].kind is not Kind.RELEASE:
            return
        _, lease_id, part = answered[0]
        if part is None:
            self.releases.released(lease_id)
        else:
            self.releases.part_released(lease_id, part, released.hold_count)

    def _refused(self, said: pb.Refused) -> None:
        answered = self.link.answered(said.call_id) if self.link else None
        if answered is None:
            return
        kind, key, part = answered[0]
        if kind is Kind.ACQUIRE:
            self.waits.refused(key, said)
        elif kind is Kind.ATTACH:
            self.leases.attach_refused(key, said)
        elif kind is Kind.RELEASE and part is None:
            self.releases.refused(key, said)
        elif kind is Kind.RELEASE and part is not None:
            self.releases.part_refused(key, part, said)
        elif kind is Kind.CREDENTIAL and self.link is not None:
            # The broker may hear of its key, or of it, in a moment.
            log.warning("a broker does not accept another credential: %s", said.message)
            self.link.shown(False)

    def tick(self, now: float) -> None:
        """Looks at the time."""
        if self._closed is not None:
            self.close_link()
            if now >= self._close_by:
                self._end()
            return
        self.leases.watch_validity(now)
        self.waits.watch(now)
        self.leases.watch_silence(now)
        self.leases.beat_if_due(now)
        if self.link is not None:
            self.link.watch_credential(now)
        self._send_again(now)
        self.moves.tick(now)

    def _send_again(self, now: float) -> None:
        if self.link is None:
            return
        due = [about for at, about in self._again if at <= now]
        self._again = [(at, about) for at, about in self._again if at > now]
        for kind, key, part in due:
            if kind is Kind.ACQUIRE:
                self.waits.send(key)
            elif kind is Kind.ATTACH:
                self.leases.attach(key)
            elif kind is Kind.RELEASE and part is None:
                self.releases.send(key)
            elif kind is Kind.RELEASE and part is not None:
                self.releases.send_part(key, part)

    def close(self, by: float, done: Callable[[], None]) -> None:
        """Gives everything back, until then, and ends."""
        self._is_over = True
        self.releases.give_back_all_lost()
        for wait in list(self.waits.all.values()):
            wait.answer(Closed())
        self.waits.all.clear()
        for lease_id in list(self.leases.all):
            self.leases.close(lease_id, Loss(LostReason.CLOSED))
        self.moves.stop()
        self._closed, self._close_by = done, by
        self._close_link_by = (clock.now() + by) / 2
        if self.link is None:
            return self._end()
        self.close_link()

    def close_link(self) -> None:
        """Closes the stream of a keeper that is closing.

        Once no unary release is under way, or after half of the shutdown time.
        """
        is_due = self.releases.alone == 0 or clock.now() >= self._close_link_by
        if self._closed is not None and self.link is not None and not self._is_link_closed and is_due:
            self._is_link_closed = True
            self.link.close()

    def broken(self, link: Link) -> None:
        """A stream is gone."""
        if link is not self.link:
            return
        self.link = None
        if self._closed is not None:
            return self._end(is_closed=True)
        log.debug("the lease stream broke")
        self._off_stream()
        self.moves.broken()

    def switch(self, link: Link) -> None:
        """Brings everything to a new stream. What the old one would still say is said again here."""
        old, self.link = self.link, link
        if old is not None:
            old.cut()
        self._off_stream()
        self.leases.take_up()
        self.waits.take_up()

    def _off_stream(self) -> None:
        self.forget_put_off()
        self.waits.off_stream()
        self.leases.off_stream()

    def _end(self, is_closed: bool = False) -> None:
        done, self._closed = self._closed, None
        link, self.link = self.link, None
        if link is not None:
            link.cut()
        self.releases.closed(is_closed)
        if done is not None:
            done()
