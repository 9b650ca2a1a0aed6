"""A network that drops or delays packets while its connections stay open.

The client detects the end of a lease by its own clock before another caller acquires the lock.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Callable

import pytest
from interfaces import Interface, acquire_and_release, create_client, wait_for_waiters
from processes import Broker
from proxy import Direction, Proxy

import leasehold
from leasehold import LostReason

TTL = 2.0
#: TTL that outlasts the stalls of a slow machine.
LONG_TTL = 20.0
MARGIN = 0.5
DIRECTIONS = (Direction.BOTH, Direction.TO_BROKER, Direction.TO_CLIENT)


async def lose_lock(
    proxy: Proxy, broker: Broker, interface: Interface, direction: Direction, delay_before: float
) -> float:
    """Loses a lock because of the network. Returns the time from the detection of the loss to the next grant."""
    lock = f"lock-{direction}-{delay_before}"
    client, other_client = create_client(interface, proxy.url), create_client(interface, broker.url)
    lease = await client.acquire(lock, ttl=TTL)

    async def acquire_next() -> tuple[Any, float]:
        next_lease = await other_client.acquire(lock, ttl=LONG_TTL)
        return next_lease, time.monotonic()

    next_grant = asyncio.ensure_future(acquire_next())
    await wait_for_waiters(other_client, lock, 1)
    await asyncio.sleep(delay_before)
    assert lease.is_valid(), "lost before data was dropped"
    proxy.drop(direction)
    assert await lease.lost() is LostReason.EXPIRED
    lost_at = time.monotonic()
    next_lease, granted_at = await asyncio.wait_for(next_grant, 10)
    assert proxy.dropped_bytes > 0, "no data was dropped"
    assert next_lease.fencing_token > lease.fencing_token

    # The network works again and the client reconnects, but its lock stays lost.
    proxy.drop(Direction(0))
    proxy.break_connections()
    await acquire_and_release(client, f"{lock}-another")
    assert not lease.is_valid() and lease.lost_reason is LostReason.EXPIRED and lease.remaining() == 0
    with pytest.raises(leasehold.LeaseLost):
        await lease.release()
    assert next_lease.is_valid(), "the release of a lost lease released another one"
    await next_lease.release()
    return granted_at - lost_at


async def test_a_loss_is_detected_before_the_next_grant(
    start: Callable[..., Any], broker: Broker, interface: Interface
) -> None:
    rounds = [
        lose_lock(start(Proxy, broker.addr), broker, interface, direction, delay_before)
        for direction in DIRECTIONS
        for delay_before in (0.1, 0.6, 1.1)
    ]
    margins = await asyncio.gather(*rounds)
    print(f"detected before the next grant by {min(margins):.3f} s or more, of {len(margins)}")
    assert min(margins) > 0


async def test_validity_counts_from_the_sending_of_a_heartbeat(
    start: Callable[..., Any], broker: Broker, interface: Interface
) -> None:
    ttl, delay = 6.0, 0.9
    proxy: Proxy = start(Proxy, broker.addr)
    lease = await create_client(interface, proxy.url).acquire("a", ttl=ttl)
    proxy.delay(delay)
    # Waits until the validity no longer depends on acknowledgements that arrived without the delay.
    await asyncio.sleep(ttl / 3 + delay)
    longest, deadline = 0.0, time.monotonic() + 4
    while time.monotonic() < deadline:
        longest = max(longest, lease.remaining())
        await asyncio.sleep(0.005)
    assert lease.is_valid()
    assert 0 < longest <= ttl - ttl / 10 - delay + 0.01, "the validity counts from the acknowledgement"
    # Late messages about a lease that has ended have no effect.
    proxy.drop(Direction.TO_BROKER)
    await lease.lost()
    proxy.drop(Direction(0))
    await asyncio.sleep(2 * delay)
    assert not lease.is_valid()


async def test_the_validity_of_a_late_grant_counts_from_its_call(
    start: Callable[..., Any], broker: Broker, interface: Interface
) -> None:
    ttl, delay = 4.0, 1.5
    proxy: Proxy = start(Proxy, broker.addr)
    client = create_client(interface, proxy.url)
    await client.connect()
    proxy.delay(delay)
    lease = await client.acquire("a", ttl=ttl)
    assert lease.remaining() <= ttl - MARGIN - delay
    await lease.release()


async def test_a_late_grant_is_delivered_after_a_heartbeat(
    start: Callable[..., Any], broker: Broker, interface: Interface
) -> None:
    ttl, delay = 2.0, 1.1
    proxy: Proxy = start(Proxy, broker.addr)
    client = create_client(interface, proxy.url)
    await client.connect()
    proxy.delay(delay)
    call = asyncio.ensure_future(client.acquire("a", ttl=ttl, wait=3))
    await asyncio.sleep(delay / 2)
    # Messages after the grant are not delayed.
    proxy.delay(0.0)
    lease = await asyncio.wait_for(call, 5)
    assert lease.remaining() >= ttl / 2 - MARGIN - 0.05
    await lease.release()


async def test_a_pending_acquire_without_leases_leaves_a_dead_connection(
    start: Callable[..., Any], two_brokers: list[Broker], interface: Interface
) -> None:
    proxy: Proxy = start(Proxy, two_brokers[0].addr)
    client, other_client = (
        create_client(interface, [proxy.url, two_brokers[1].url]),
        create_client(interface, two_brokers[1].url),
    )
    lease = await other_client.acquire("a", ttl=20)
    pending = asyncio.ensure_future(client.acquire("a", ttl=20))
    await wait_for_waiters(other_client, "a", 1)
    proxy.drop(Direction.BOTH)
    proxy.reject_connections()
    # The broker would remove the waiter after 6 s without a heartbeat.
    await asyncio.sleep(7)
    await wait_for_waiters(other_client, "a", 1)
    await lease.release()
    next_lease = await asyncio.wait_for(pending, 5)
    await next_lease.release()
