"""Behaviour of the calls, with a real and a fake broker, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings

import pytest
from interfaces import TIMEOUT, BrokerFixture, acquire_and_release

import leasehold
from leasehold import LostReason, QueuePosition, aio


async def test_the_next_holder_has_a_larger_fencing_token(broker_fixture: BrokerFixture, name: str) -> None:
    client, other_client = broker_fixture.client("one"), broker_fixture.client("other")
    lease = await client.acquire(name, ttl=2)
    assert lease.is_valid() and lease.lost_reason is None and not lease.inner.lost
    lease.check()
    assert lease.fencing_token > 0 and lease.lease_id and lease.remaining() > 0
    assert lease.locks == [f"default/{name}"]
    assert lease.fencing_token_of(name) == lease.fencing_token
    assert lease.fencing_token_of("another") is None
    assert await other_client.try_lock(name) is None, "the lock has two holders"
    await lease.release()
    assert not lease.is_valid() and lease.lost_reason is LostReason.RELEASED
    assert lease.remaining() == 0
    with pytest.raises(leasehold.LeaseLost):
        lease.check()
    acquired = await other_client.try_lock(name)
    assert acquired is not None and acquired.fencing_token > lease.fencing_token
    await lease.release()
    assert acquired.is_valid(), "a second release released another lease"
    await acquired.release()


async def test_a_wait_timeout_reports_the_holders(broker_fixture: BrokerFixture, name: str) -> None:
    client, other_client = broker_fixture.client("one"), broker_fixture.client("other")
    lease = await client.acquire(name, reason="maintenance")
    started_at = time.monotonic()
    with pytest.raises(leasehold.WaitTimeout) as caught:
        await other_client.acquire(name, wait=0.3)
    assert time.monotonic() - started_at >= 0.3
    (holder,) = caught.value.holders
    assert (holder.owner, holder.reason, holder.lease_id) == ("one", "maintenance", lease.lease_id)
    assert "one (maintenance)" in str(caught.value)
    with pytest.raises(leasehold.Held):
        await other_client.acquire(name, wait=0)
    await lease.release()


async def test_a_waiter_receives_its_position_and_is_granted_in_order(broker_fixture: BrokerFixture, name: str) -> None:
    client, other_client = broker_fixture.client("one"), broker_fixture.client("other")
    lease = await client.acquire(name)
    first = asyncio.ensure_future(client.acquire(name))
    await broker_fixture.wait_for_waiters(name, 1)
    positions: list[QueuePosition] = []
    second = asyncio.ensure_future(other_client.acquire(name, on_queue=positions.append))
    await broker_fixture.wait_for_waiters(name, 2)
    await lease.release()
    first_lease = await asyncio.wait_for(first, TIMEOUT)
    assert not second.done()
    await first_lease.release()
    second_lease = await asyncio.wait_for(second, TIMEOUT)
    assert second_lease.fencing_token > first_lease.fencing_token > lease.fencing_token
    assert (positions[0].position, positions[0].queue_length) == (2, 2)
    assert [position.position for position in positions] == sorted(
        (position.position for position in positions), reverse=True
    )
    await second_lease.release()


async def test_a_hook_that_fails_ends_the_wait(broker_fixture: BrokerFixture, name: str) -> None:
    client, other_client = broker_fixture.client("one"), broker_fixture.client("other")
    lease = await client.acquire(name)

    def fail(_: QueuePosition) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await other_client.acquire(name, on_queue=fail)
    await broker_fixture.wait_for_waiters(name, 0)
    await lease.release()


async def test_an_unreferenced_lease_is_released(broker_fixture: BrokerFixture, name: str) -> None:
    client, other_client = broker_fixture.client("one"), broker_fixture.client("other")
    lease = await client.acquire(name, ttl=20)
    with warnings.catch_warnings(record=True) as warnings_:
        warnings.simplefilter("always")
        del lease
        deadline = time.monotonic() + TIMEOUT
        # The thread that made the call keeps a reference to the lease for a short time.
        while not warnings_ and time.monotonic() < deadline:
            gc.collect()
            await asyncio.sleep(0)
    assert [str(warning.message) for warning in warnings_] == [
        f"the lease of default/{name} was not released: use a with block, or call release"
    ]
    await acquire_and_release(other_client, name)


async def test_leases_keep_their_client_alive(broker_fixture: BrokerFixture, name: str) -> None:
    other_client = broker_fixture.client("other")
    lease = await broker_fixture.client("one").acquire(name, ttl=3)
    gc.collect()
    await asyncio.sleep(4)
    assert lease.is_valid()
    assert await other_client.try_lock(name) is None
    await lease.release()


async def test_a_shutdown_releases_everything(broker_fixture: BrokerFixture, name: str) -> None:
    client, other_client = broker_fixture.client("one"), broker_fixture.client("other")
    lease = await client.acquire(name, ttl=20)
    pending = asyncio.ensure_future(client.acquire(name))
    await broker_fixture.wait_for_waiters(name, 1)
    started_at = time.monotonic()
    await client.shutdown()
    assert time.monotonic() - started_at < 2.5
    with pytest.raises(leasehold.Closed):
        await asyncio.wait_for(pending, TIMEOUT)
    assert await lease.lost() is LostReason.CLOSED
    for call in (client.acquire(name), client.get(name), client.set_limit(name, 1)):
        with pytest.raises(leasehold.Closed):
            await call
    with pytest.raises(leasehold.LeaseLost):
        await lease.release()
    await acquire_and_release(other_client, name)
    await client.shutdown()


async def test_try_lock_makes_the_given_number_of_attempts(broker_fixture: BrokerFixture, name: str) -> None:
    client, other_client = broker_fixture.client("one"), broker_fixture.client("other")
    lease = await client.acquire(name)
    started_at = time.monotonic()
    assert await other_client.try_lock(name, attempts=4, every=0.1) is None
    assert 0.3 * 0.75 <= time.monotonic() - started_at < 1.2
    late = asyncio.ensure_future(other_client.try_lock(name, attempts=1_000, every=0.01))
    await lease.release()
    acquired = await asyncio.wait_for(late, TIMEOUT)
    assert acquired is not None
    await acquired.release()


async def test_get_returns_the_holders_and_the_queue_length(broker_fixture: BrokerFixture, name: str) -> None:
    client = broker_fixture.client("one")
    assert await client.get(name) is None
    lease = await client.acquire(name, reason="inspected")
    pending = asyncio.ensure_future(client.acquire(name))
    await broker_fixture.wait_for_waiters(name, 1)
    state = await client.get(name)
    assert state is not None and state.queue_length == 1
    (holder,) = state.holders
    assert (holder.owner, holder.reason) == ("one", "inspected")
    assert holder.fencing_token == state.last_fencing_token == lease.fencing_token
    assert holder.since is not None and holder.remaining > 0
    await lease.release()
    await (await pending).release()


async def test_a_leader_is_elected_and_observed(broker_fixture: BrokerFixture, name: str) -> None:
    client, other_client, third = (
        broker_fixture.client("one"),
        broker_fixture.client("other"),
        broker_fixture.client("third"),
    )
    observer = third.inner.elect(name).observe()

    async def leader() -> leasehold.Holder | None:
        if isinstance(observer, aio.Observer):
            return await asyncio.wait_for(observer.next(), TIMEOUT)
        return await asyncio.wait_for(asyncio.to_thread(observer.next), TIMEOUT)

    async def campaign(election: leasehold.Election | aio.Election) -> leasehold.Lease | aio.Lease:
        if isinstance(election, aio.Election):
            return await election.campaign()
        return await asyncio.to_thread(election.campaign)

    assert await leader() is None
    first_lease = await campaign(client.inner.elect(name, reason="first"))
    observed = await leader()
    assert observed is not None and (observed.owner, observed.reason) == ("one", "first")
    assert observed.fencing_token == first_lease.fencing_token
    pending = asyncio.ensure_future(campaign(other_client.inner.elect(name)))
    await broker_fixture.wait_for_waiters(name, 1)
    await client.shutdown()
    second_lease = await asyncio.wait_for(pending, TIMEOUT)
    observed = await leader()
    assert observed is not None and observed.owner == "other"
    assert second_lease.is_valid()
    await other_client.shutdown()


async def test_invalid_fields_are_rejected(broker_fixture: BrokerFixture, name: str) -> None:
    client = broker_fixture.client("one")
    with pytest.raises(TypeError, match="unknown option: tll"):
        await client.acquire(name, tll=3)
    with pytest.raises(ValueError, match="invalid duration"):
        await client.acquire(name, ttl=-1)
    with pytest.raises(ValueError, match=r"range|seconds"):
        await client.acquire(name, ttl=1e20)
    with pytest.raises(TypeError, match="name or a Target"):
        await client.acquire(3)
    with pytest.raises(ValueError, match="either shared"):
        await client.acquire(name, shared=True, permits=1)
    await acquire_and_release(client, name)
