"""The same client for asyncio: same names, and blocks whose task is cancelled when the lock is lost.

from leasehold import aio

async with aio.Client("http://127.0.0.1:7070") as client:
    async with client.lock("orders/42", wait=10) as lease:
        await write(fencing_token=lease.fencing_token)
"""

from leasehold.aio.client import Client
from leasehold.aio.election import Election, Observer
from leasehold.aio.lease import Lease, Lost
from leasehold.aio.lock import Lock

__all__ = ["Client", "Election", "Lease", "Lock", "Lost", "Observer"]
