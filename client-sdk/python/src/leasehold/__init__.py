"""The Python client of Leasehold, a lock broker, for programs with threads; ``leasehold.aio`` is for asyncio.

    import leasehold

    client = leasehold.Client("http://127.0.0.1:7070")
    with client.lock("orders/42", wait=10, reason="nightly reconcile") as lease:
        write(fencing_token=lease.fencing_token)
        lease.check()

``is_valid`` returns false, permanently, before another caller can acquire the lock. This also holds after a pause of
this process or its machine. The validity alone does not protect data, because the process may pause between the check
and the write. Send ``fencing_token`` with every write, and reject smaller tokens at the resource.
"""

from leasehold._core.command import LockState, PermitUsage, QueuePosition
from leasehold._core.current_leases import assert_held
from leasehold._core.endpoint import TLS
from leasehold._core.options import Options
from leasehold.client import Client
from leasehold.election import Election, Observer
from leasehold.errors import (
    AcquireError,
    Closed,
    Closure,
    ClosureCause,
    ConnectError,
    Contention,
    CredentialRefused,
    Error,
    Forked,
    Held,
    Holder,
    InsecureToken,
    Internal,
    Invalid,
    InvalidCredential,
    InvalidEndpoint,
    InvalidOwner,
    LeaseLost,
    LimitMismatch,
    Loss,
    LostReason,
    NoEndpoint,
    NotHeld,
    Other,
    PermissionDenied,
    QueueFull,
    QuotaExceeded,
    Refused,
    ReleaseError,
    StoreFull,
    StoreRecovering,
    StoreRecovery,
    Unauthenticated,
    Unavailable,
    Unconfirmed,
    Unreachable,
    UnsupportedByStore,
    UpgradeDenied,
    WaitTimeout,
)
from leasehold.lease import Lease, Lost
from leasehold.lock import Lock
from leasehold.target import Target

__version__ = "0.1.0"

__all__ = [
    "TLS",
    "AcquireError",
    "Client",
    "Closed",
    "Closure",
    "ClosureCause",
    "ConnectError",
    "Contention",
    "CredentialRefused",
    "Election",
    "Error",
    "Forked",
    "Held",
    "Holder",
    "InsecureToken",
    "Internal",
    "Invalid",
    "InvalidCredential",
    "InvalidEndpoint",
    "InvalidOwner",
    "Lease",
    "LeaseLost",
    "LimitMismatch",
    "Lock",
    "LockState",
    "Loss",
    "Lost",
    "LostReason",
    "NoEndpoint",
    "NotHeld",
    "Observer",
    "Options",
    "Other",
    "PermissionDenied",
    "PermitUsage",
    "QueueFull",
    "QueuePosition",
    "QuotaExceeded",
    "Refused",
    "ReleaseError",
    "StoreFull",
    "StoreRecovering",
    "StoreRecovery",
    "Target",
    "Unauthenticated",
    "Unavailable",
    "Unconfirmed",
    "Unreachable",
    "UnsupportedByStore",
    "UpgradeDenied",
    "WaitTimeout",
    "__version__",
    "assert_held",
]
