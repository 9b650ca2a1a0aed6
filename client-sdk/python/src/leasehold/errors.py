"""Everything that can go wrong, one class for each reason that a caller may treat differently.

Messages are for people; branch on the classes. New ones may come.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime


class LostReason(enum.Enum):
    """Why a lease is over although nobody released it here."""

    #: No renewal was confirmed in time: the network, the broker or its store could not be reached, or
    #: this process stood still.
    EXPIRED = "no renewal was confirmed in time"
    #: An operator took it away.
    REVOKED = "revoked"
    #: The store does not know it any more.
    STORE_LOST = "the store lost it"
    #: It has been held for all of its ``max_hold``.
    MAX_HOLD = "held for all of its max_hold"
    #: It was given back, here or with a copy of the lease.
    RELEASED = "released"
    #: Somebody took it over with a copy of the lease.
    MOVED = "moved to another client"
    #: The client's credential ran out.
    CREDENTIAL_EXPIRED = "the credential ran out"
    #: The client was shut down.
    CLOSED = "the client is shut down"
    #: This process is a child of the one that holds it.
    FORKED = "held by the parent of this process"
    #: A reason that this client does not know.
    OTHER = "lost"


@dataclass(frozen=True)
class Loss:
    """Why a lease is over, with what the broker said."""

    reason: LostReason
    #: For people.
    message: str = ""

    def __str__(self) -> str:
        if self.message:
            return f"{self.reason.value}: {self.message}"
        return self.reason.value


@dataclass(frozen=True)
class Holder:
    """Somebody who holds a lock, as others may see it. A hint, perhaps stale already."""

    #: Public identifier of the lease.
    lease_id: str
    #: The process.
    owner: str
    #: Why it took the lock.
    reason: str
    #: Its fencing token.
    fencing_token: int
    #: Since when, by the broker's clock.
    since: datetime | None
    #: Seconds left on its lease.
    remaining: float


class Error(Exception):
    """Whatever this package raises."""

    #: When to try again, in seconds, if that is worth while.
    retry_after: float | None = None

    def __init__(self, message: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    @property
    def holders(self) -> Sequence[Holder]:
        """Some who hold the lock, if they were in the way."""
        return ()


class AcquireError(Error):
    """Why a lock was not taken."""


@dataclass(frozen=True)
class Busy:
    """Who was in the way."""

    #: For people.
    message: str = ""
    #: At most 5.
    holders: list[Holder] = field(default_factory=list)
    #: How many wait.
    queue_length: int = 0
    #: The shortest time until a holder's lease runs out unless it is renewed.
    retry_after: float | None = None

    def __str__(self) -> str:
        if not self.holders:
            return self.message
        named = (f"{one.owner} ({one.reason})" if one.reason else one.owner for one in self.holders)
        return f"{self.message}; held by {', '.join(named)}"


class _BusyError(AcquireError):
    def __init__(self, busy: Busy) -> None:
        super().__init__(str(busy), busy.retry_after)
        self.busy = busy

    @property
    def holders(self) -> Sequence[Holder]:
        """Some who hold the lock; at most 5."""
        return self.busy.holders

    @property
    def queue_length(self) -> int:
        """How many wait."""
        return self.busy.queue_length


class Held(_BusyError):
    """Somebody else holds the lock, and the call did not wait."""


class WaitTimeout(_BusyError):
    """The wait timed out.

    The call has left the queue, unless another attempt of it is still queued or has been granted the lock
    (STILL_QUEUED).
    """


class LeaseLost(AcquireError):
    """The lock was lost: what it guarded may overlap with the work of somebody else, unless a fencing
    token keeps them apart. From an acquire: the lease given as ``under`` is over.
    """

    def __init__(self, loss: Loss) -> None:
        super().__init__(f"the lock was lost: {loss}")
        self.loss = loss

    @property
    def reason(self) -> LostReason:
        """Why."""
        return self.loss.reason


class LimitMismatch(AcquireError):
    """Another limit or mode is in use on this lock."""


class UpgradeDenied(AcquireError):
    """Shared to exclusive under one lease."""


class Invalid(AcquireError):
    """A field of the call is not legal."""


class QueueFull(AcquireError):
    """The lock's line is full."""


class QuotaExceeded(AcquireError):
    """A quota of the broker is used up."""


class StoreFull(AcquireError):
    """The broker's store has no memory for another holder or waiter."""


class UnsupportedByStore(AcquireError):
    """The broker's store cannot do that."""


class Unauthenticated(AcquireError):
    """The credential is missing or not accepted."""


class PermissionDenied(AcquireError):
    """The credential does not allow that."""


class Unavailable(AcquireError):
    """No broker, or no store behind it, could answer in time.

    The call was repeated until then, and was given up: if it did take the lock, that runs out by itself.
    """


class StoreRecovering(AcquireError):
    """The store has lost data and grants nothing until every lease that it may have forgotten is over."""


class Internal(AcquireError):
    """A fault of the broker."""


class Closed(AcquireError):
    """The client is shut down."""

    def __init__(self, message: str = "the client is shut down") -> None:
        super().__init__(message)


class Forked(Closed):
    """The client was used before this process was forked, and belongs to the parent."""

    def __init__(self) -> None:
        super().__init__("the client belongs to the parent of this process: make one after the fork")


class Other(AcquireError):
    """Anything else that a broker says, perhaps a newer one than this client."""


class NotHeld(Error):
    """Code that needs a lock runs without it (``assert_held``)."""


class ReleaseError(Error):
    """Why a release did not go as hoped. The lease is gone in any case; see also ``LeaseLost``."""


class Unconfirmed(ReleaseError):
    """No broker has confirmed it while the lease could have lived; it has run out by now."""

    def __init__(self) -> None:
        super().__init__("no broker has confirmed the release; the lock has run out by itself")


class Refused(ReleaseError):
    """The broker would not."""


class ConnectError(Error):
    """Why a client could not be made."""


class NoEndpoint(ConnectError):
    """No endpoint was given."""

    def __init__(self) -> None:
        super().__init__("no endpoint: give at least one, as in http://127.0.0.1:7070")


class InvalidEndpoint(ConnectError):
    """An endpoint is none."""

    def __init__(self, endpoint: str, why: str) -> None:
        super().__init__(f"endpoint {endpoint!r}: {why}; expected a URL as in http://127.0.0.1:7070")
        self.endpoint = endpoint


class InvalidCredential(ConnectError):
    """The credential has characters that no header may have, or its file cannot be read."""

    def __init__(self, why: str = "is not printable ASCII") -> None:
        super().__init__(f"the credential {why}")


class InsecureToken(ConnectError):
    """A bearer token would be sent unencrypted to another machine."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(
            f"endpoint {endpoint!r}: the bearer token would cross the network unencrypted; use https, or "
            "allow_insecure_token=True where the network itself is trusted"
        )
        self.endpoint = endpoint


class InvalidOwner(ConnectError):
    """The owner is empty or longer than 256 bytes."""

    def __init__(self) -> None:
        super().__init__("the owner's name must have 1 to 256 bytes")


class CredentialRefused(ConnectError):
    """The brokers answer, and accept no call with this credential, or without one."""


class Unreachable(ConnectError):
    """No broker answers."""
