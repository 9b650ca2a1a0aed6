"""Locks of all modes, and several locks at once, with a real and a fake broker, for threads and for asyncio."""

from __future__ import annotations

import asyncio

import pytest
from interfaces import BrokerFixture, Client, acquire_and_release

import leasehold
from leasehold import Target


async def is_held(client: Client, lock: str) -> bool:
    """Returns true if another caller holds the lock."""
    lease = await client.try_lock(lock)
    if lease is not None:
        await lease.release()
    return lease is None


async def test_readers_share_and_a_writer_waits_for_them(broker_fixture: BrokerFixture, name: str) -> None:
    client = broker_fixture.client("one")
    first, second = await client.acquire(name, shared=True), await client.acquire(name, shared=True)
    assert await is_held(client, name)
    await first.release()
    assert await is_held(client, name)
    await second.release()
    await acquire_and_release(client, name)


async def test_permits_add_up_to_the_limit(broker_fixture: BrokerFixture, name: str) -> None:
    client = broker_fixture.client("one")
    three = await client.try_lock(name, permits=3, limit=5)
    two = await client.try_lock(Target(name, permits=2, limit=5))
    assert three is not None and two is not None
    assert await client.try_lock(name, permits=1, limit=5) is None, "6 of 5 permits were acquired"
    await three.release()
    again = await client.try_lock(name, permits=3)
    assert again is not None, "the limit in use was not applied"
    await again.release()
    await two.release()


async def test_several_locks_are_acquired_all_or_none(broker_fixture: BrokerFixture, name: str) -> None:
    client, other_client = broker_fixture.client("one"), broker_fixture.client("other")
    locks = [f"{name}/{part}" for part in "abc"]
    held = await other_client.acquire(locks[1])
    assert await client.try_all(list(locks)) is None
    assert not await is_held(other_client, locks[0]), "a part of the locks was acquired"
    await held.release()
    lease = await client.all(list(locks))
    tokens = [lease.fencing_token_of(lock) for lock in locks]
    assert all(tokens) and lease.locks == [f"default/{lock}" for lock in locks]
    assert await is_held(other_client, locks[2])
    await lease.release()
    mixed = await other_client.all([Target(locks[2], shared=True), locks[0]])
    shared = await client.try_lock(locks[2], shared=True)
    assert mixed.is_valid() and shared is not None
    await shared.release()
    await mixed.release()


async def test_a_held_lock_is_entered_again_and_released_separately(broker_fixture: BrokerFixture, name: str) -> None:
    client, other_client = broker_fixture.client("one"), broker_fixture.client("other")
    outer = await client.acquire(name)
    inner = await client.acquire(name, under=outer)
    assert inner.fencing_token == outer.fencing_token and inner.lease_id == outer.lease_id
    await inner.release()
    assert outer.is_valid() and not inner.is_valid() and await is_held(other_client, name)
    inner = await client.acquire(name, under=outer)
    await outer.release()
    assert inner.is_valid() and not outer.is_valid(), "a release released the locks of another call"
    assert await is_held(other_client, name)
    await inner.release()
    await acquire_and_release(other_client, name)


async def test_an_exclusive_lock_is_downgraded_to_a_shared_one(broker_fixture: BrokerFixture, name: str) -> None:
    client, other_client = broker_fixture.client("one"), broker_fixture.client("other")
    writer = await client.acquire(name)
    reader = await client.acquire(name, under=writer, shared=True)
    assert await other_client.try_lock(name, shared=True) is None
    await writer.release()
    assert reader.is_valid() and reader.fencing_token == writer.fencing_token
    shared_lease = await other_client.try_lock(name, shared=True)
    assert shared_lease is not None, "the entry of the writer was not released"
    await shared_lease.release()
    await reader.release()
    await acquire_and_release(other_client, name)


async def test_a_lock_is_added_to_a_lease(broker_fixture: BrokerFixture, name: str) -> None:
    client, other_client = broker_fixture.client("one"), broker_fixture.client("other")
    first = await client.acquire(name)
    added = await client.acquire(f"{name}/more", under=first)
    assert added.lease_id == first.lease_id and added.locks == [f"default/{name}/more"]
    await added.release()
    await acquire_and_release(other_client, f"{name}/more")
    assert await is_held(other_client, name)
    await first.release()
    await acquire_and_release(other_client, name)


async def test_no_lock_is_added_to_an_ended_lease(broker_fixture: BrokerFixture, name: str) -> None:
    client = broker_fixture.client("one")
    lease = await client.acquire(name)
    await lease.release()
    with pytest.raises(leasehold.LeaseLost):
        await client.acquire(name, under=lease)
    await acquire_and_release(client, name)


async def test_an_upgrade_is_denied(broker_fixture: BrokerFixture, name: str) -> None:
    client = broker_fixture.client("one")
    shared = await client.acquire(name, shared=True)
    with pytest.raises(leasehold.UpgradeDenied):
        await client.acquire(name, under=shared)
    assert shared.is_valid()
    await shared.release()


async def test_another_limit_is_rejected(broker_fixture: BrokerFixture, name: str) -> None:
    client = broker_fixture.client("one")
    held = await client.acquire(name, permits=1, limit=5)
    with pytest.raises(leasehold.LimitMismatch):
        await client.acquire(name, permits=1, limit=6)
    with pytest.raises(leasehold.LimitMismatch):
        await client.try_lock(name, shared=True)
    await held.release()


async def test_locks_of_different_namespaces_are_different(broker_fixture: BrokerFixture, name: str) -> None:
    client = broker_fixture.client("one")
    lease = await client.acquire(name)
    other_lease = await client.try_lock(name, namespace="elsewhere")
    assert other_lease is not None and other_lease.locks == [f"elsewhere/{name}"]
    await lease.release()
    await other_lease.release()


async def test_one_client_holds_more_leases_than_one_stream(broker_fixture: BrokerFixture, name: str) -> None:
    client = broker_fixture.client("one")
    leases = await asyncio.gather(*(client.acquire(f"{name}/{lock}", ttl=20) for lock in range(1_100)))
    assert all(lease.is_valid() for lease in leases)
    await client.shutdown()
    assert not any(lease.is_valid() for lease in leases)
    await acquire_and_release(broker_fixture.client("other"), f"{name}/1099")
