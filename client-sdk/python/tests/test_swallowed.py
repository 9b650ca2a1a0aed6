"""A network that swallows or delays packets while its connections stay open: a lease is over by its own clock,
before somebody else has the lock.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Callable

import pytest
from flavours import Flavour, client_of, takes, waits_for
from processes import Broker
from proxy import Proxy, Way

import leasehold
from leasehold import LostReason

TTL = 2.0
#: Outlasts the stalls of a slow machine.
LONG = 20.0
MARGIN = 0.5
WAYS = (Way.BOTH, Way.TO_BROKER, Way.TO_CLIENT)


async def lose(proxy: Proxy, broker: Broker, flavour: Flavour, way: Way, pause: float) -> float:
    """Loses a lock to the network; how long before the next one has it that was known."""
    lock = f"lock-{way}-{pause}"
    client, other = client_of(flavour, proxy.url), client_of(flavour, broker.url)
    lease = await client.acquire(lock, ttl=TTL)

    async def next_has_it() -> tuple[Any, float]:
        following = await other.acquire(lock, ttl=LONG)
        return following, time.monotonic()

    turn = asyncio.ensure_future(next_has_it())
    await waits_for(other, lock, 1)
    await asyncio.sleep(pause)
    assert lease.is_valid(), "lost before anything happened"
    proxy.swallow(way)
    assert await lease.lost() is LostReason.EXPIRED
    lost = time.monotonic()
    following, granted = await asyncio.wait_for(turn, 10)
    assert proxy.lost > 0, "nothing was swallowed"
    assert following.fencing_token > lease.fencing_token

    # The network is back, and so is the client, but not its lock.
    proxy.swallow(Way(0))
    proxy.cut()
    await takes(client, f"{lock}-another")
    assert not lease.is_valid() and lease.lost_reason is LostReason.EXPIRED and lease.remaining() == 0
    with pytest.raises(leasehold.LeaseLost):
        await lease.release()
    assert following.is_valid(), "a lost lease gives nothing back"
    await following.release()
    return granted - lost


async def test_a_loss_is_known_before_somebody_else_has_the_lock(
    start: Callable[..., Any], broker: Broker, flavour: Flavour
) -> None:
    rounds = [lose(start(Proxy, broker.addr), broker, flavour, way, pause) for way in WAYS for pause in (0.1, 0.6, 1.1)]
    distances = await asyncio.gather(*rounds)
    print(f"known before the next grant by {min(distances):.3f} s or more, of {len(distances)}")
    assert min(distances) > 0


async def test_validity_counts_from_the_sending_of_a_heartbeat(
    start: Callable[..., Any], broker: Broker, flavour: Flavour
) -> None:
    ttl, delay = 6.0, 0.9
    proxy: Proxy = start(Proxy, broker.addr)
    lease = await client_of(flavour, proxy.url).acquire("a", ttl=ttl)
    proxy.delay(delay)
    # Past what was acknowledged without delay.
    await asyncio.sleep(ttl / 3 + delay)
    most, until = 0.0, time.monotonic() + 4
    while time.monotonic() < until:
        most = max(most, lease.remaining())
        await asyncio.sleep(0.005)
    assert lease.is_valid()
    assert 0 < most <= ttl - ttl / 10 - delay + 0.01, "as if it had been sent when its answer came"
    # What is said late of a lease that is over changes nothing.
    proxy.swallow(Way.TO_BROKER)
    await lease.lost()
    proxy.swallow(Way(0))
    await asyncio.sleep(2 * delay)
    assert not lease.is_valid()


async def test_a_late_grant_counts_from_its_call(start: Callable[..., Any], broker: Broker, flavour: Flavour) -> None:
    ttl, delay = 4.0, 1.5
    proxy: Proxy = start(Proxy, broker.addr)
    client = client_of(flavour, proxy.url)
    await client.connect()
    proxy.delay(delay)
    lease = await client.acquire("a", ttl=ttl)
    assert lease.remaining() <= ttl - MARGIN - delay
    await lease.release()


async def test_a_grant_that_comes_too_late_is_handed_out_by_a_heartbeat(
    start: Callable[..., Any], broker: Broker, flavour: Flavour
) -> None:
    ttl, delay = 2.0, 1.1
    proxy: Proxy = start(Proxy, broker.addr)
    client = client_of(flavour, proxy.url)
    await client.connect()
    proxy.delay(delay)
    call = asyncio.ensure_future(client.acquire("a", ttl=ttl, wait=3))
    await asyncio.sleep(delay / 2)
    # From the grant on everything is fast again.
    proxy.delay(0.0)
    lease = await asyncio.wait_for(call, 5)
    assert lease.remaining() >= ttl / 2 - MARGIN - 0.05
    await lease.release()


async def test_a_wait_without_leases_leaves_a_dead_connection(
    start: Callable[..., Any], two_brokers: list[Broker], flavour: Flavour
) -> None:
    proxy: Proxy = start(Proxy, two_brokers[0].addr)
    client, other = client_of(flavour, [proxy.url, two_brokers[1].url]), client_of(flavour, two_brokers[1].url)
    lease = await other.acquire("a", ttl=20)
    waits = asyncio.ensure_future(client.acquire("a", ttl=20))
    await waits_for(other, "a", 1)
    proxy.swallow(Way.BOTH)
    proxy.refuse()
    # Six seconds without a heartbeat would end the wait.
    await asyncio.sleep(7)
    await waits_for(other, "a", 1)
    await lease.release()
    following = await asyncio.wait_for(waits, 5)
    await following.release()
