"""From one broker to the next: after a break, when asked to, when nothing answers.

A stream that still works is left only once another one is open.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Callable

from leasehold._core import clock
from leasehold._core.endpoint import OPEN_LIMIT
from leasehold._core.link import Link, Listener
from leasehold.errors import ConnectError, CredentialRefused, InvalidCredential, Unreachable

if TYPE_CHECKING:
    from leasehold._core.keeper import Keeper

log = logging.getLogger("leasehold")

#: Clients of a broker that dies don't all come to the next one at the same moment.
_JITTER = 0.05
#: A stream that lived for so long was a success.
_SETTLED = 1.0
_PAUSE_MIN = 0.1
_PAUSE_MAX = 1.0


def jittered(time: float) -> float:
    """Between half of it and all of it."""
    return time * random.uniform(0.5, 1.0)


class Moves:
    """On the way to another broker."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        # The endpoint of the present stream, or the one that was tried last.
        self._at = -1
        self._due: float | None = None
        self._opening: Link | None = None
        # Endpoints that were tried one after the other in vain.
        self._failures = 0
        # Endpoints that did not accept the credential, one after the other.
        self._denials = 0
        self._opened_at = clock.now()
        self._why = "not connected yet"
        # Who waits for the first stream, and why there was none since.
        self._first: list[tuple[Callable[[ConnectError | None], None], list[str]]] = []
        self._is_over = False
        post = keeper.core.worker.post
        self._listener = Listener(
            opened=lambda link: post(self._opened, link),
            failed=lambda link, why, is_denied: post(self._failed, link, why, is_denied),
            heard=lambda link, response: post(keeper.hear, link, response),
            broken=lambda link: post(keeper.broken, link),
        )

    def is_settled(self) -> bool:
        """Whether nothing is planned."""
        return self._due is None

    def why_not(self) -> str:
        """Why there is no stream."""
        return f"no broker can be reached: {self._why}"

    def tell_first(self, told: Callable[[ConnectError | None], None]) -> None:
        """Tells when there is a stream, or why there is none once every endpoint was tried."""
        if self._keeper.link is not None:
            told(None)
        else:
            self._first.append((told, []))

    def leave(self, delay: float) -> None:
        """Goes to another broker after a while."""
        now = clock.now()
        if self.is_settled():
            self._begin(now)
        at = now + delay
        self._due = at if self._due is None else min(self._due, at)
        self._open_if_due(now)

    def broken(self) -> None:
        """The stream is gone."""
        self._why = "the stream broke"
        self._begin(clock.now())
        self._failures += 1
        self.leave(max(jittered(_JITTER), self._pause()))

    def tick(self, now: float) -> None:
        """Looks at the time."""
        opening = self._opening
        if opening is not None and now >= opening.begun_at + OPEN_LIMIT:
            opening.cut()
            self._failed(opening, f"{opening.endpoint.name}: no answer within {OPEN_LIMIT:g} s", False)
        self._open_if_due(now)

    def stop(self) -> None:
        """Goes nowhere any more."""
        self._is_over, self._due = True, None
        if self._opening is not None:
            self._opening.cut()
            self._opening = None
        self._tell(Unreachable("no broker answers: the client is shut down"))

    def _begin(self, now: float) -> None:
        # What failed before the present stream counts no more, if that was a success.
        if now > self._opened_at + _SETTLED:
            self._failures = 0

    def _open_if_due(self, now: float) -> None:
        if self._is_over or self._opening is not None or self._due is None or now < self._due:
            return
        self._at += 1
        try:
            self._opening = Link(self._keeper.brokers, self._at, self._listener)
        except InvalidCredential as error:
            self._no_link(str(error), False)

    def _opened(self, link: Link) -> None:
        if link is not self._opening:
            return link.cut()
        self._opening, self._due = None, None
        self._denials = 0
        self._opened_at = clock.now()
        self._keeper.switch(link)
        self._tell(None)

    def _failed(self, link: Link, why: str, is_denied: bool) -> None:
        if link is self._opening:
            self._opening = None
            self._no_link(why, is_denied)

    def _no_link(self, why: str, is_denied: bool) -> None:
        if is_denied:
            log.warning("a broker does not accept the credential: %s", why)
            self._denials += 1
        else:
            log.warning("a broker does not answer: %s", why)
            self._denials = 0
        self._failures += 1
        self._why = why
        self._due = clock.now() + self._pause()
        count = len(self._keeper.brokers.endpoints)
        if self._denials >= count and self._keeper.link is None:
            self._keeper.waits.deny(self.why_not())
        first, self._first = self._first, []
        for told, whys in first:
            whys.append(why)
            if len(whys) < count:
                self._first.append((told, whys))
            elif self._denials >= count:
                told(CredentialRefused(f"the credential is missing or not accepted: {'; '.join(whys)}"))
            else:
                told(Unreachable(f"no broker answers: {'; '.join(whys)}"))

    def _tell(self, why: ConnectError | None) -> None:
        first, self._first = self._first, []
        for told, _ in first:
            told(why)

    def _pause(self) -> float:
        # Every endpoint is tried at once the first time, then all more and more slowly.
        rounds = self._failures // len(self._keeper.brokers.endpoints)
        if rounds == 0:
            return 0.0
        return jittered(min(_PAUSE_MIN * 2.0 ** min(rounds - 1, 16), _PAUSE_MAX))
