"""Every way in which a lock is lost, and the outages in which it is not, with real brokers."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, Callable

import pytest
from flavours import Flavour, client_of, takes, waits_for
from processes import Broker, Redis, free_port
from proxy import Proxy, Way

import leasehold
from leasehold import LostReason

TTL = 2.0
#: When the store gives the lock to somebody else.
EXPIRY = TTL * 1.2 + 0.25
#: Where another broker is to be found in time, on a busy machine, too.
LONG_TTL = 5.0
LONG_EXPIRY = LONG_TTL * 1.2 + 0.25
#: How late a loss is told that nobody asks for.
TICKS = 0.25


def urls(brokers: list[Broker]) -> str:
    """All of them as endpoints."""
    return ",".join(broker.url for broker in brokers)


async def test_a_holder_without_a_broker_stops_trusting_by_itself(broker: Broker, flavour: Flavour) -> None:
    client = client_of(flavour, broker.url)
    lease = await client.acquire("a", ttl=TTL)
    await asyncio.sleep(TTL)
    lost = asyncio.ensure_future(lease.lost())
    killed_at = time.monotonic()
    broker.kill()
    assert lease.is_valid(), "its time is not over yet"
    assert await lost is LostReason.EXPIRED
    assert time.monotonic() - killed_at <= TTL - 0.5 + TICKS
    with pytest.raises(leasehold.LeaseLost):
        await lease.release()
    broker.restart()
    await takes(client, "a")
    assert not lease.is_valid(), "nothing is taken again silently"


async def test_a_store_that_loses_a_lock_is_told_of(start: Callable[..., Any], redis: Redis, flavour: Flavour) -> None:
    client = client_of(flavour, start(Broker, redis.url).url)
    lease = await client.acquire("a")
    redis.command("FLUSHALL")
    assert await lease.lost() is LostReason.STORE_LOST
    with pytest.raises(leasehold.LeaseLost) as caught:
        await lease.release()
    assert caught.value.reason is LostReason.STORE_LOST
    # Refused for now is repeated until 5 s after the wait.
    with pytest.raises(leasehold.StoreRecovering) as recovering:
        await client.acquire("b", wait=0)
    assert recovering.value.retry_after


async def test_a_lock_is_held_no_longer_than_max_hold(broker: Broker, flavour: Flavour) -> None:
    client = client_of(flavour, broker.url)
    lease = await client.acquire("a", ttl=TTL, max_hold=TTL)
    granted_at = time.monotonic()
    # The client's own clock may be first.
    assert await lease.lost() in (LostReason.MAX_HOLD, LostReason.EXPIRED)
    assert time.monotonic() - granted_at <= TTL + TICKS


async def test_a_killed_broker_costs_no_lease(two_brokers: list[Broker], flavour: Flavour) -> None:
    client = client_of(flavour, urls(two_brokers))
    lease = await client.acquire("a", ttl=LONG_TTL)
    inner = await client.acquire("a", under=lease)
    two_brokers[0].kill()
    await asyncio.sleep(LONG_EXPIRY + 0.5)
    assert lease.is_valid() and inner.is_valid() and lease.remaining() > 0.4
    await inner.release()
    await lease.release()
    taken = await client.try_lock("a")
    assert taken is not None, "both entries are given back"
    assert taken.fencing_token > lease.fencing_token
    await taken.release()


async def test_a_broker_that_stands_still_is_left(two_brokers: list[Broker], flavour: Flavour) -> None:
    client = client_of(flavour, urls(two_brokers))
    lease = await client.acquire("a", ttl=LONG_TTL)
    two_brokers[0].process.pause()
    await asyncio.sleep(LONG_EXPIRY + 0.5)
    assert lease.is_valid(), lease.lost_reason
    await lease.release()
    await takes(client, "a")
    two_brokers[0].process.resume()


async def test_a_drain_moves_leases_and_waits(two_brokers: list[Broker], flavour: Flavour) -> None:
    client, observer = client_of(flavour, urls(two_brokers)), client_of(flavour, two_brokers[1].url)
    lease = await client.acquire("a", ttl=TTL)
    waits = asyncio.ensure_future(client.acquire("a", ttl=TTL))
    await waits_for(observer, "a", 1)
    two_brokers[0].terminate()
    code = await asyncio.to_thread(two_brokers[0].process.ended)
    assert code == 0
    await asyncio.sleep(EXPIRY)
    assert lease.is_valid() and not waits.done()
    await lease.release()
    following = await asyncio.wait_for(waits, 5)
    assert following.fencing_token > lease.fencing_token
    await following.release()


async def test_a_wait_keeps_its_place_when_its_broker_dies(two_brokers: list[Broker], flavour: Flavour) -> None:
    client, other = client_of(flavour, urls(two_brokers)), client_of(flavour, two_brokers[1].url)
    lease = await other.acquire("a")
    first = asyncio.ensure_future(client.acquire("a"))
    await waits_for(other, "a", 1)
    second = asyncio.ensure_future(other.acquire("a"))
    await waits_for(other, "a", 2)
    two_brokers[0].kill()
    # The place of the wait is its own again once its call is repeated.
    await takes(client, "b")
    await lease.release()
    leads = await asyncio.wait_for(first, 10)
    assert not second.done(), "nobody passes it"
    await leads.release()
    await (await asyncio.wait_for(second, 5)).release()


async def test_a_release_without_an_answer_is_repeated_elsewhere(two_brokers: list[Broker], flavour: Flavour) -> None:
    client = client_of(flavour, urls(two_brokers))
    lease = await client.acquire("a")
    two_brokers[0].process.pause()
    release = asyncio.ensure_future(lease.release())
    await asyncio.sleep(0)
    two_brokers[0].kill()
    await asyncio.wait_for(release, 10)
    taken = await client.try_lock("a")
    assert taken is not None, "it is given back"
    await taken.release()


@pytest.mark.parametrize("part", ["a", "b"])
async def test_a_part_whose_release_has_no_answer_is_released_elsewhere(
    start: Callable[..., Any], two_brokers: list[Broker], flavour: Flavour, part: str
) -> None:
    proxy: Proxy = start(Proxy, two_brokers[0].addr)
    client = client_of(flavour, [proxy.url, two_brokers[1].url])
    lease = await client.acquire("a", ttl=TTL)
    added = await client.acquire(part, under=lease)
    proxy.swallow(Way.TO_CLIENT)
    lost = proxy.lost
    release = asyncio.ensure_future(added.release())
    await asyncio.to_thread(proxy.wait_for, lambda: proxy.lost > lost)
    proxy.refuse()
    proxy.cut()
    await asyncio.wait_for(release, 10)
    await asyncio.sleep(EXPIRY)
    assert lease.is_valid(), lease.lost_reason
    await takes(client, "b")
    await lease.release()
    await takes(client, "a")


async def test_an_acquire_without_an_answer_is_the_same_when_repeated(
    start: Callable[..., Any], two_brokers: list[Broker], flavour: Flavour
) -> None:
    proxy: Proxy = start(Proxy, two_brokers[0].addr)
    client, observer = client_of(flavour, [proxy.url, two_brokers[1].url]), client_of(flavour, two_brokers[1].url)
    await client.connect()
    proxy.swallow(Way.TO_CLIENT)
    call = asyncio.ensure_future(client.acquire("a"))
    state = None
    while state is None:
        state = await observer.get("a")
    proxy.refuse()
    proxy.cut()
    lease = await asyncio.wait_for(call, 10)
    assert lease.lease_id == state.holders[0].lease_id, "the grant that was not heard of"
    assert lease.fencing_token == state.last_fencing_token
    await lease.release()


async def test_a_call_that_nobody_answers_says_so(broker: Broker, flavour: Flavour) -> None:
    client = client_of(flavour, broker.url)
    await client.connect()
    broker.kill()
    begun = time.monotonic()
    with pytest.raises(leasehold.Unavailable, match=broker.addr):
        await client.try_lock("a")
    assert 5 <= time.monotonic() - begun < 8


async def test_a_store_that_cannot_be_reached_is_waited_for(
    start: Callable[..., Any], redis: Redis, flavour: Flavour
) -> None:
    client = client_of(flavour, start(Broker, redis.url).url)
    lease = await client.acquire("a", ttl=10)
    redis.process.pause()
    call = asyncio.ensure_future(client.acquire("b"))
    await asyncio.sleep(1.5)
    assert not call.done()
    redis.process.resume()
    await (await asyncio.wait_for(call, 10)).release()
    assert lease.is_valid()
    await lease.release()


async def test_a_store_without_memory_is_told_of_and_keeps_leases_alive(
    start: Callable[..., Any], redis: Redis, flavour: Flavour
) -> None:
    client = client_of(flavour, start(Broker, redis.url).url)
    lease = await client.acquire("a", ttl=3)
    redis.command("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(leasehold.StoreFull) as caught:
        await client.acquire("b")
    assert caught.value.retry_after
    await asyncio.sleep(4)
    assert lease.is_valid()
    await lease.release()


async def test_bad_input_is_told_and_the_stream_lives_on(shared_broker: Broker, flavour: Flavour) -> None:
    client = client_of(flavour, shared_broker.url)
    for lock, options in (("", {}), ("a\nb", {}), ("a", {"permits": 2, "limit": 1}), ("a", {"reason": "x" * 600})):
        with pytest.raises((leasehold.Invalid, leasehold.LimitMismatch)):
            await client.acquire(lock, **options)
    with pytest.raises(leasehold.Invalid):
        await client.all(["a", "a"])
    await takes(client, "bad-input")


async def test_endpoints_are_tried_in_order(shared_broker: Broker, flavour: Flavour) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    lost = client_of(flavour, nowhere)
    with pytest.raises(leasehold.Unreachable, match=nowhere):
        await lost.connect()
    await lost.shutdown()
    client = client_of(flavour, f"{nowhere}, {shared_broker.url}")
    await client.connect()
    await takes(client, "endpoints")


async def test_looks_without_a_broker_say_so(flavour: Flavour) -> None:
    client = client_of(flavour, f"http://127.0.0.1:{free_port()},http://127.0.0.1:{free_port()}")

    async def look() -> None:
        with pytest.raises(leasehold.Unavailable, match="no broker can be reached"):
            await client.get("a")

    # Looks that come meanwhile hold up nobody.
    looks = []
    for _ in range(20):
        looks.append(asyncio.ensure_future(look()))
        await asyncio.sleep(0.05)
    await asyncio.wait_for(asyncio.gather(*looks), 15)
    await client.shutdown()


async def test_leases_and_waits_share_one_stream(start: Callable[..., Any], broker: Broker, flavour: Flavour) -> None:
    proxy: Proxy = start(Proxy, broker.addr)
    client = client_of(flavour, proxy.url)
    await client.connect()
    leases = await asyncio.gather(*(client.acquire(f"lock-{lock}", ttl=20) for lock in range(20)))
    waits = [asyncio.ensure_future(client.acquire("lock-0", ttl=20)) for _ in range(20)]
    await waits_for(client, "lock-0", 20)
    await asyncio.gather(*(lease.release() for lease in leases))
    for wait in asyncio.as_completed(waits, timeout=20):
        await (await wait).release()
    assert proxy.opened == 1
    await client.shutdown()


async def test_a_wait_that_is_repeated_late_has_timed_out(
    start: Callable[..., Any], broker: Broker, flavour: Flavour
) -> None:
    proxy: Proxy = start(Proxy, broker.addr)
    client, other = client_of(flavour, proxy.url), client_of(flavour, broker.url)
    lease = await other.acquire("a", ttl=20)
    call = asyncio.ensure_future(client.acquire("a", wait=1))
    await waits_for(other, "a", 1)
    proxy.refuse()
    proxy.cut()
    await asyncio.sleep(1.5)
    assert not call.done(), "its outcome is not known"
    proxy.refuse(False)
    with pytest.raises(leasehold.WaitTimeout) as caught:
        await asyncio.wait_for(call, 10)
    assert caught.value.holders[0].lease_id == lease.lease_id
    await lease.release()


def test_an_end_waits_for_one_that_is_under_way(broker: Broker) -> None:
    client = leasehold.Client(broker.url)
    client.connect()
    lease = client.acquire("a", ttl=20)
    broker.process.pause()
    first, second = threading.Event(), threading.Event()
    # As when the last lease is forgotten just before the process ends.
    for done in (first, second):
        client._backend.close(done.set)
    assert not second.wait(0.5) and not first.is_set()
    broker.process.resume()
    assert first.wait(5) and second.wait(5)
    assert lease.lost.reason is LostReason.CLOSED
    with leasehold.Client(broker.url) as other, other.lock("a", wait=1):
        pass
