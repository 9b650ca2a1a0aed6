"""The Python client of Leasehold, a lock broker, for programs of threads; leasehold.aio is for asyncio.

    import leasehold

    client = leasehold.Client("http://127.0.0.1:7070")
    with client.lock("orders/42", wait=10, reason="nightly reconcile") as lease:
        write(fencing_token=lease.fencing_token)
        lease.check()

What can be relied on: ``is_valid`` is false, and stays false, before anybody else can get the lock, also after this
process or its machine stood still. That is not enough to protect data: between the check and the write the process
may stand still. Send ``fencing_token`` with every write, and refuse smaller ones there.
"""

from leasehold._core.endpoint import TLS
from leasehold._core.held import assert_held
from leasehold._core.options import Options
from leasehold._core.order import LockState, Place
from leasehold.client import Client
from leasehold.election import Election, Observer
from leasehold.errors import (
    AcquireError,
    Busy,
    Closed,
    ConnectError,
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
    "Busy",
    "Client",
    "Closed",
    "ConnectError",
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
    "Place",
    "QueueFull",
    "QuotaExceeded",
    "Refused",
    "ReleaseError",
    "StoreFull",
    "StoreRecovering",
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
