"""A broker in memory, for tests of code that takes locks, with a switch to lose a lock.

    from leasehold.testing import FakeBroker

    broker = FakeBroker()
    client = broker.client()
    lease = client.acquire("orders/42")
    assert broker.client("other").try_lock("orders/42") is None

    broker.lose("orders/42")
    assert not lease.is_valid()

With pytest, the fixture ``fake_broker`` is one.

Leases never run out here, and there is no ``max_hold``, ``lock_delay`` or ``disconnect_grace``: a lock is held until it
is given back or lost. Everything else is as with a broker: the same clients, one line for each lock in strict order,
fencing tokens that rise, shared locks, permits, several locks at once and re-entry.
"""

from leasehold.testing.broker import FakeBroker

__all__ = ["FakeBroker"]
