"""A broker in memory, for tests of code that acquires locks. Tests can make it lose a lock.

    from leasehold.testing import FakeBroker

    broker = FakeBroker()
    client = broker.client()
    lease = client.acquire("orders/42")
    assert broker.client("other").try_lock("orders/42") is None

    broker.lose("orders/42")
    assert not lease.is_valid()

With pytest, the fixture ``fake_broker`` returns a FakeBroker.

Leases never expire here, and ``max_hold``, ``lock_delay``, ``at_least`` and
``disconnect_grace`` have no effect: a lock is held until it is released or lost, and then
free at once. Otherwise the fake behaves as a broker does: the same clients, a queue for each
lock in strict order, rising fencing tokens, shared locks, permits, set limits, several locks at
once and re-entry.
"""

from leasehold.testing.broker import FakeBroker

__all__ = ["FakeBroker"]
