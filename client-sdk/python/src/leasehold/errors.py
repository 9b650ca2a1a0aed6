"""Errors of the client, with one class for each reason that a caller may handle differently.

Messages are meant for people; branch on the classes. Classes may be added.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime


class LostReason(enum.Enum):
    """Reason for which a lease has ended."""

    #: No renewal was confirmed in time: the network, the broker or its store was unavailable, or this process was
    #: paused.
    EXPIRED = "no renewal was confirmed in time"
    #: An operator revoked the lease.
    REVOKED = "revoked"
    #: The store has no record of the lease.
    STORE_LOST = "the store lost the lease"
    #: The lock was held for the whole of its ``max_hold``.
    MAX_HOLD = "the lease has reached its max_hold"
    #: The lease was released, by this client or with a copy of the lease.
    RELEASED = "released"
    #: Another client attached the lease with a copy of it.
    MOVED = "moved to another client"
    #: The client's credential expired.
    CREDENTIAL_EXPIRED = "the credential expired"
    #: The client was shut down.
    CLOSED = "the client is shut down"
    #: This process was forked from the process that holds the lease.
    FORKED = "held by the parent of this process"
    #: A reason that this version of the client does not define.
    OTHER = "lost"


@dataclass(frozen=True)
class Loss:
    """Reason for which a lease has ended, with the broker's message."""

    reason: LostReason
    #: Message of the broker, for people; empty if there is none.
    message: str = ""

    def __str__(self) -> str:
        if self.message:
            return f"{self.reason.value}: {self.message}"
        return self.reason.value


@dataclass(frozen=True)
class Holder:
    """A holder of a lock, as other callers may see it. A hint that may be stale."""

    #: Public identifier of the lease.
    lease_id: str
    #: Name of the process that holds the lock.
    owner: str
    #: Reason for which the process acquired the lock.
    reason: str
    #: Fencing token of the grant.
    fencing_token: int
    #: Time of the grant by the broker's clock, if the broker sent it.
    since: datetime | None
    #: Seconds until the lease expires.
    remaining: float


class ClosureCause(enum.Enum):
    """Cause of a closure."""

    #: The ``lock_delay`` of a lease that expired or was revoked.
    LOCK_DELAY = "lock_delay"
    #: The ``at_least`` of a lease that has ended.
    AT_LEAST = "at_least"
    #: A command of an operator.
    OPERATOR = "operator"
    #: A cause that this version of the client does not define.
    OTHER = "other"


@dataclass(frozen=True)
class Closure:
    """A period in which a lock grants nothing new. A hint that may be stale."""

    cause: ClosureCause
    #: Name of the process whose lease has ended, or of the operator; empty if the caller may not observe the lock.
    owner: str
    #: Reason of the process for its lease, or of the operator; may be empty.
    reason: str
    #: End of the period by the clock of the store, if the broker sent it.
    until: datetime | None
    #: Seconds until the end of the period.
    remaining: float


@dataclass(frozen=True)
class StoreRecovery:
    """A period after a loss of data in which the store grants nothing new."""

    #: Cause for people, as the rest of a sentence that begins with the name of the store: ``was restarted``.
    cause: str
    #: Beginning of the period by the clock of the store, if it is known.
    since: datetime | None
    #: Seconds until the end of the period.
    remaining: float


class Error(Exception):
    """Base class of the errors of this package."""

    #: Seconds after which a retry may succeed, if the broker sent a time.
    retry_after: float | None = None

    def __init__(self, message: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    @property
    def holders(self) -> Sequence[Holder]:
        """Some holders of the lock, at most 5, if the lock was held. Otherwise empty."""
        return ()


class AcquireError(Error):
    """A lock was not acquired."""


@dataclass(frozen=True)
class Contention:
    """Holders and waiters for which an acquire was rejected."""

    #: Message of the broker, for people.
    message: str = ""
    #: Some holders of the lock; at most 5.
    holders: list[Holder] = field(default_factory=list)
    #: Number of waiters in the queue of the lock.
    queue_length: int = 0
    #: Shortest time until the lease of a holder expires unless it is renewed, in seconds.
    retry_after: float | None = None
    #: Closure of the lock, if the lock is closed.
    closure: Closure | None = None

    def __str__(self) -> str:
        text = self.message
        if self.holders:
            text += f"; held by {', '.join(map(_owner_text, self.holders))}"
        if self.closure is not None and self.closure.owner:
            text += f"; closed by {_owner_text(self.closure)}"
        return text


def _owner_text(source: Holder | Closure) -> str:
    return f"{source.owner} ({source.reason})" if source.reason else source.owner


class _ContentionError(AcquireError):
    def __init__(self, contention: Contention) -> None:
        super().__init__(str(contention), contention.retry_after)
        self.contention = contention

    @property
    def holders(self) -> Sequence[Holder]:
        """Some holders of the lock; at most 5."""
        return self.contention.holders

    @property
    def queue_length(self) -> int:
        """Number of waiters in the queue of the lock."""
        return self.contention.queue_length

    @property
    def closure(self) -> Closure | None:
        """Closure of the lock, if the lock is closed."""
        return self.contention.closure


class Held(_ContentionError):
    """Another caller holds the lock or the lock is closed, and the call did not wait."""


class WaitTimeout(_ContentionError):
    """The wait timed out.

    The call has left the queue, unless another attempt of it is still queued or has been granted the lock
    (STILL_QUEUED).
    """


class LeaseLost(AcquireError):
    """The lock was lost.

    The protected work may have overlapped with the work of another holder, unless a fencing token prevented it. An
    acquire raises LeaseLost if the lease given as ``under`` has ended.
    """

    def __init__(self, loss: Loss) -> None:
        super().__init__(f"the lock was lost: {loss}")
        self.loss = loss

    @property
    def reason(self) -> LostReason:
        """Reason for which the lock was lost."""
        return self.loss.reason


class LimitMismatch(AcquireError):
    """Another limit or mode is in use on this lock."""


class UpgradeDenied(AcquireError):
    """The lease has a weaker hold on the lock, such as shared, and requested a stronger one, such as exclusive."""


class Invalid(AcquireError):
    """A field of the call is invalid."""


class QueueFull(AcquireError):
    """The queue of the lock is full."""


class QuotaExceeded(AcquireError):
    """A quota of the broker is exhausted."""


class StoreFull(AcquireError):
    """The broker's store has no memory for another holder or waiter."""


class UnsupportedByStore(AcquireError):
    """The broker's store does not support the request."""


class Unauthenticated(AcquireError):
    """The credential is missing or was not accepted."""


class PermissionDenied(AcquireError):
    """The credential does not authorize the request."""


class Unavailable(AcquireError):
    """No broker responded in time, or its store did not.

    The client repeated the call until then. If an attempt acquired the lock nevertheless, its lease expires.
    """


class StoreRecovering(AcquireError):
    """The store has lost data, and grants nothing until every lease that may have been lost has expired."""


class Internal(AcquireError):
    """An internal error of the broker."""


class Closed(AcquireError):
    """The client was shut down."""

    def __init__(self, message: str = "the client is shut down") -> None:
        super().__init__(message)


class Forked(Closed):
    """The client was used before this process was forked, and can be used in the parent process only."""

    def __init__(self) -> None:
        super().__init__("the client belongs to the parent of this process: create a client after the fork")


class Other(AcquireError):
    """Any other rejection, perhaps of a broker that is newer than this client."""


class NotHeld(Error):
    """The running code does not hold the lock that ``assert_held`` requires."""


class ReleaseError(Error):
    """A release failed. The lease can no longer be used in any case; see also ``LeaseLost``."""


class Unconfirmed(ReleaseError):
    """No broker confirmed the release before the lease expired or the client closed."""

    def __init__(self) -> None:
        super().__init__("no broker has confirmed the release; the lease expires if it was not released")


class Refused(ReleaseError):
    """A broker rejected the release."""


class ConnectError(Error):
    """A client could not be created or connected."""


class NoEndpoint(ConnectError):
    """No endpoint was given."""

    def __init__(self) -> None:
        super().__init__("no endpoint: set at least one, as in http://127.0.0.1:7070")


class InvalidEndpoint(ConnectError):
    """An endpoint is not a usable http or https URL."""

    def __init__(self, endpoint: str, reason: str) -> None:
        super().__init__(f"endpoint {endpoint!r}: {reason}; expected a URL as in http://127.0.0.1:7070")
        self.endpoint = endpoint


class InvalidCredential(ConnectError):
    """The credential contains characters other than printable ASCII, or its file cannot be read."""

    def __init__(self, reason: str = "is not printable ASCII") -> None:
        super().__init__(f"the credential {reason}")


class InsecureToken(ConnectError):
    """A bearer token would be sent unencrypted to another machine."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(
            f"endpoint {endpoint!r}: the bearer token would be sent unencrypted to another machine; use https, or "
            "set allow_insecure_token=True on a trusted network"
        )
        self.endpoint = endpoint


class InvalidOwner(ConnectError):
    """The owner is empty or longer than 256 bytes."""

    def __init__(self) -> None:
        super().__init__("the owner's name must have 1 to 256 bytes")


class CredentialRefused(ConnectError):
    """The brokers respond, but accept no call with this credential, or without one."""


class Unreachable(ConnectError):
    """No broker responds."""
