"""Lost locks for each reason, and outages without a lost lock, with real brokers."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from typing import Any, Callable

import pytest
from interfaces import TIMEOUT, Interface, acquire_and_release, create_client, wait_for_waiters
from processes import Broker, Redis, free_port
from proxy import Direction, Proxy

import leasehold
from leasehold import LostReason

TTL = 2.0
#: Time after which the store grants the lock to another caller.
EXPIRY = TTL * 1.2 + 0.25
#: TTL for tests with a failover, which must complete in time on a busy machine, too.
LONG_TTL = 5.0
LONG_EXPIRY = LONG_TTL * 1.2 + 0.25
#: Maximum delay of the notification of a lost lock.
NOTIFICATION_DELAY_MAX = 0.25


def urls(brokers: list[Broker]) -> str:
    """Returns the endpoints of all brokers, separated by commas."""
    return ",".join(broker.url for broker in brokers)


async def test_a_lease_expires_without_a_broker(broker: Broker, interface: Interface) -> None:
    client = create_client(interface, broker.url)
    lease = await client.acquire("a", ttl=TTL)
    await asyncio.sleep(TTL)
    lost = asyncio.ensure_future(lease.lost())
    killed_at = time.monotonic()
    broker.kill()
    assert lease.is_valid(), "the validity ended early"
    assert await lost is LostReason.EXPIRED
    assert time.monotonic() - killed_at <= TTL - 0.5 + NOTIFICATION_DELAY_MAX
    with pytest.raises(leasehold.LeaseLost):
        await lease.release()
    broker.restart()
    await acquire_and_release(client, "a")
    assert not lease.is_valid(), "a lost lock was acquired again"


async def test_a_lock_that_the_store_has_lost_is_reported(
    start: Callable[..., Any], redis: Redis, interface: Interface
) -> None:
    client = create_client(interface, start(Broker, redis.url).url)
    lease = await client.acquire("a")
    waited: queue.SimpleQueue[leasehold.QueuePosition] = queue.SimpleQueue()
    waiting = asyncio.ensure_future(client.acquire("a", wait=4, on_queue=waited.put))
    position = await asyncio.to_thread(waited.get, True, TIMEOUT)
    assert position.recovery is None
    redis.command("FLUSHALL")
    assert await lease.lost() is LostReason.STORE_LOST
    while position.recovery is None:
        position = await asyncio.to_thread(waited.get, True, TIMEOUT)
    assert (position.position, position.recovery.cause) == (1, "was found empty")
    with pytest.raises(leasehold.LeaseLost) as caught:
        await lease.release()
    assert caught.value.reason is LostReason.STORE_LOST
    # A retryable rejection is repeated until 5 s after the wait.
    positions: list[leasehold.QueuePosition] = []
    with pytest.raises(leasehold.StoreRecovering) as recovering:
        await client.acquire("b", wait=0, on_queue=positions.append)
    assert recovering.value.retry_after
    assert [position.position for position in positions] == [0]
    recovery = positions[0].recovery
    assert recovery is not None and recovery.cause == "was found empty"
    assert recovery.since is not None and recovery.remaining > 0
    with pytest.raises(leasehold.AcquireError):
        await waiting


async def test_a_lock_is_held_no_longer_than_max_hold(broker: Broker, interface: Interface) -> None:
    client = create_client(interface, broker.url)
    lease = await client.acquire("a", ttl=TTL, max_hold=TTL)
    granted_at = time.monotonic()
    # The client's own clock may end the lease before the broker reports its end.
    assert await lease.lost() in (LostReason.MAX_HOLD, LostReason.EXPIRED)
    assert time.monotonic() - granted_at <= TTL + NOTIFICATION_DELAY_MAX


async def test_a_killed_broker_loses_no_lease(two_brokers: list[Broker], interface: Interface) -> None:
    client = create_client(interface, urls(two_brokers))
    lease = await client.acquire("a", ttl=LONG_TTL)
    inner = await client.acquire("a", under=lease)
    two_brokers[0].kill()
    await asyncio.sleep(LONG_EXPIRY + 0.5)
    assert lease.is_valid() and inner.is_valid() and lease.remaining() > 0.4
    await inner.release()
    await lease.release()
    acquired = await client.try_lock("a")
    assert acquired is not None, "an entry was not released"
    assert acquired.fencing_token > lease.fencing_token
    await acquired.release()


async def test_a_stalled_broker_is_failed_over(two_brokers: list[Broker], interface: Interface) -> None:
    client = create_client(interface, urls(two_brokers))
    lease = await client.acquire("a", ttl=LONG_TTL)
    two_brokers[0].process.pause()
    await asyncio.sleep(LONG_EXPIRY + 0.5)
    assert lease.is_valid(), lease.lost_reason
    await lease.release()
    await acquire_and_release(client, "a")
    two_brokers[0].process.resume()


async def test_a_drain_moves_leases_and_pending_acquires(two_brokers: list[Broker], interface: Interface) -> None:
    client, observer = create_client(interface, urls(two_brokers)), create_client(interface, two_brokers[1].url)
    lease = await client.acquire("a", ttl=TTL)
    pending = asyncio.ensure_future(client.acquire("a", ttl=TTL))
    await wait_for_waiters(observer, "a", 1)
    two_brokers[0].terminate()
    code = await asyncio.to_thread(two_brokers[0].process.wait_for_exit)
    assert code == 0
    await asyncio.sleep(EXPIRY)
    assert lease.is_valid() and not pending.done()
    await lease.release()
    next_lease = await asyncio.wait_for(pending, 5)
    assert next_lease.fencing_token > lease.fencing_token
    await next_lease.release()


async def test_a_waiter_keeps_its_position_when_its_broker_is_killed(
    two_brokers: list[Broker], interface: Interface
) -> None:
    client, other_client = create_client(interface, urls(two_brokers)), create_client(interface, two_brokers[1].url)
    lease = await other_client.acquire("a")
    first = asyncio.ensure_future(client.acquire("a"))
    await wait_for_waiters(other_client, "a", 1)
    second = asyncio.ensure_future(other_client.acquire("a"))
    await wait_for_waiters(other_client, "a", 2)
    two_brokers[0].kill()
    # The wait has its queue position again once the client has repeated its call at the other broker.
    await acquire_and_release(client, "b")
    await lease.release()
    first_lease = await asyncio.wait_for(first, 10)
    assert not second.done(), "the second waiter was granted first"
    await first_lease.release()
    await (await asyncio.wait_for(second, 5)).release()


async def test_a_release_without_a_response_is_repeated_at_another_broker(
    two_brokers: list[Broker], interface: Interface
) -> None:
    client = create_client(interface, urls(two_brokers))
    lease = await client.acquire("a")
    two_brokers[0].process.pause()
    release = asyncio.ensure_future(lease.release())
    await asyncio.sleep(0)
    two_brokers[0].kill()
    await asyncio.wait_for(release, 10)
    acquired = await client.try_lock("a")
    assert acquired is not None, "the lock was not released"
    await acquired.release()


@pytest.mark.parametrize("part", ["a", "b"])
async def test_a_partial_release_without_a_response_is_repeated_at_another_broker(
    start: Callable[..., Any], two_brokers: list[Broker], interface: Interface, part: str
) -> None:
    proxy: Proxy = start(Proxy, two_brokers[0].addr)
    client = create_client(interface, [proxy.url, two_brokers[1].url])
    lease = await client.acquire("a", ttl=TTL)
    added = await client.acquire(part, under=lease)
    proxy.drop(Direction.TO_CLIENT)
    dropped_before = proxy.dropped_bytes
    release = asyncio.ensure_future(added.release())
    await asyncio.to_thread(proxy.wait_for, lambda: proxy.dropped_bytes > dropped_before)
    proxy.reject_connections()
    proxy.break_connections()
    await asyncio.wait_for(release, 10)
    await asyncio.sleep(EXPIRY)
    assert lease.is_valid(), lease.lost_reason
    await acquire_and_release(client, "b")
    await lease.release()
    await acquire_and_release(client, "a")


async def test_an_acquire_without_a_response_is_idempotent_when_repeated(
    start: Callable[..., Any], two_brokers: list[Broker], interface: Interface
) -> None:
    proxy: Proxy = start(Proxy, two_brokers[0].addr)
    client, observer = (
        create_client(interface, [proxy.url, two_brokers[1].url]),
        create_client(interface, two_brokers[1].url),
    )
    await client.connect()
    proxy.drop(Direction.TO_CLIENT)
    call = asyncio.ensure_future(client.acquire("a"))
    state = None
    while state is None:
        state = await observer.get("a")
    proxy.reject_connections()
    proxy.break_connections()
    lease = await asyncio.wait_for(call, 10)
    assert lease.lease_id == state.holders[0].lease_id, "the repeated acquire was granted another lease"
    assert lease.fencing_token == state.last_fencing_token
    await lease.release()


async def test_a_call_without_a_response_is_unavailable(broker: Broker, interface: Interface) -> None:
    client = create_client(interface, broker.url)
    await client.connect()
    broker.kill()
    started_at = time.monotonic()
    with pytest.raises(leasehold.Unavailable, match=broker.addr):
        await client.try_lock("a")
    assert 5 <= time.monotonic() - started_at < 8


async def test_an_acquire_waits_for_an_unreachable_store(
    start: Callable[..., Any], redis: Redis, interface: Interface
) -> None:
    client = create_client(interface, start(Broker, redis.url).url)
    lease = await client.acquire("a", ttl=10)
    redis.process.pause()
    call = asyncio.ensure_future(client.acquire("b"))
    await asyncio.sleep(1.5)
    assert not call.done()
    redis.process.resume()
    await (await asyncio.wait_for(call, 10)).release()
    assert lease.is_valid()
    await lease.release()


async def test_a_full_store_rejects_acquires_and_renews_leases(
    start: Callable[..., Any], redis: Redis, interface: Interface
) -> None:
    client = create_client(interface, start(Broker, redis.url).url)
    lease = await client.acquire("a", ttl=3)
    redis.command("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(leasehold.StoreFull) as caught:
        await client.acquire("b")
    assert caught.value.retry_after
    await asyncio.sleep(4)
    assert lease.is_valid()
    await lease.release()


async def test_invalid_input_is_rejected_and_the_stream_stays_open(shared_broker: Broker, interface: Interface) -> None:
    client = create_client(interface, shared_broker.url)
    for lock, options in (("", {}), ("a\nb", {}), ("a", {"permits": 2, "limit": 1}), ("a", {"reason": "x" * 600})):
        with pytest.raises((leasehold.Invalid, leasehold.LimitMismatch)):
            await client.acquire(lock, **options)
    with pytest.raises(leasehold.Invalid):
        await client.all(["a", "a"])
    await acquire_and_release(client, "bad-input")


async def test_endpoints_are_tried_in_order(shared_broker: Broker, interface: Interface) -> None:
    unused = f"http://127.0.0.1:{free_port()}"
    lost = create_client(interface, unused)
    with pytest.raises(leasehold.Unreachable, match=unused):
        await lost.connect()
    await lost.shutdown()
    client = create_client(interface, f"{unused}, {shared_broker.url}")
    await client.connect()
    await acquire_and_release(client, "endpoints")


async def test_get_without_a_broker_is_unavailable(interface: Interface) -> None:
    client = create_client(interface, f"http://127.0.0.1:{free_port()},http://127.0.0.1:{free_port()}")

    async def get_lock_state() -> None:
        with pytest.raises(leasehold.Unavailable, match="no broker can be reached"):
            await client.get("a")

    # Later calls do not delay earlier ones.
    calls = []
    for _ in range(20):
        calls.append(asyncio.ensure_future(get_lock_state()))
        await asyncio.sleep(0.05)
    await asyncio.wait_for(asyncio.gather(*calls), 15)
    await client.shutdown()


async def test_leases_and_pending_acquires_share_one_stream(
    start: Callable[..., Any], broker: Broker, interface: Interface
) -> None:
    proxy: Proxy = start(Proxy, broker.addr)
    client = create_client(interface, proxy.url)
    await client.connect()
    leases = await asyncio.gather(*(client.acquire(f"lock-{lock}", ttl=20) for lock in range(20)))
    pending = [asyncio.ensure_future(client.acquire("lock-0", ttl=20)) for _ in range(20)]
    await wait_for_waiters(client, "lock-0", 20)
    await asyncio.gather(*(lease.release() for lease in leases))
    for next_pending in asyncio.as_completed(pending, timeout=20):
        await (await next_pending).release()
    assert proxy.opened_connections == 1
    await client.shutdown()


async def test_an_acquire_repeated_after_its_wait_times_out(
    start: Callable[..., Any], broker: Broker, interface: Interface
) -> None:
    proxy: Proxy = start(Proxy, broker.addr)
    client, other_client = create_client(interface, proxy.url), create_client(interface, broker.url)
    lease = await other_client.acquire("a", ttl=20)
    call = asyncio.ensure_future(client.acquire("a", wait=1))
    await wait_for_waiters(other_client, "a", 1)
    proxy.reject_connections()
    proxy.break_connections()
    await asyncio.sleep(1.5)
    assert not call.done(), "the call ended before its outcome was known"
    proxy.reject_connections(False)
    with pytest.raises(leasehold.WaitTimeout) as caught:
        await asyncio.wait_for(call, 10)
    assert caught.value.holders[0].lease_id == lease.lease_id
    await lease.release()


def test_a_close_waits_for_a_close_in_progress(broker: Broker) -> None:
    client = leasehold.Client(broker.url)
    client.connect()
    lease = client.acquire("a", ttl=20)
    broker.process.pause()
    first, second = threading.Event(), threading.Event()
    # The backend is closed twice as well when the last lease is dropped just before the process ends.
    for done in (first, second):
        client._backend.close(done.set)
    assert not second.wait(0.5) and not first.is_set()
    broker.process.resume()
    assert first.wait(5) and second.wait(5)
    assert lease.lost.reason is LostReason.CLOSED
    with leasehold.Client(broker.url) as other_client, other_client.lock("a", wait=1):
        pass
