"""The client for asyncio. Its names are those of ``leasehold``, and a lost lock cancels the task in its block.

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
