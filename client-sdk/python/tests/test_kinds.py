"""Locks of all kinds and several of them, with a broker and with the fake, in threads and in asyncio alike."""

from __future__ import annotations

import asyncio

import pytest
from flavours import Client, Site, takes

import leasehold
from leasehold import Target


async def taken(client: Client, lock: str) -> bool:
    """Whether somebody else has it."""
    lease = await client.try_lock(lock)
    if lease is not None:
        await lease.release()
    return lease is None


async def test_readers_share_and_a_writer_waits_for_them(site: Site, name: str) -> None:
    client = site.client("one")
    one, other = await client.acquire(name, shared=True), await client.acquire(name, shared=True)
    assert await taken(client, name)
    await one.release()
    assert await taken(client, name)
    await other.release()
    await takes(client, name)


async def test_permits_add_up_to_the_limit(site: Site, name: str) -> None:
    client = site.client("one")
    three = await client.try_lock(name, permits=3, limit=5)
    two = await client.try_lock(Target(name, permits=2, limit=5))
    assert three is not None and two is not None
    assert await client.try_lock(name, permits=1, limit=5) is None, "6 of 5"
    await three.release()
    again = await client.try_lock(name, permits=3)
    assert again is not None, "the limit in use"
    await again.release()
    await two.release()


async def test_several_locks_are_taken_all_or_none(site: Site, name: str) -> None:
    one, other = site.client("one"), site.client("other")
    locks = [f"{name}/{part}" for part in "abc"]
    held = await other.acquire(locks[1])
    assert await one.try_all(list(locks)) is None
    assert not await taken(other, locks[0]), "a part was kept"
    await held.release()
    lease = await one.all(list(locks))
    tokens = [lease.fencing_token_of(lock) for lock in locks]
    assert all(tokens) and lease.locks == [f"default/{lock}" for lock in locks]
    assert await taken(other, locks[2])
    await lease.release()
    mixed = await other.all([Target(locks[2], shared=True), locks[0]])
    shared = await one.try_lock(locks[2], shared=True)
    assert mixed.is_valid() and shared is not None
    await shared.release()
    await mixed.release()


async def test_a_lease_is_entered_and_left_again(site: Site, name: str) -> None:
    one, other = site.client("one"), site.client("other")
    outer = await one.acquire(name)
    inner = await one.acquire(name, under=outer)
    assert inner.fencing_token == outer.fencing_token and inner.lease_id == outer.lease_id
    await inner.release()
    assert outer.is_valid() and not inner.is_valid() and await taken(other, name)
    inner = await one.acquire(name, under=outer)
    await outer.release()
    assert inner.is_valid() and not outer.is_valid(), "each gives back what it took"
    assert await taken(other, name)
    await inner.release()
    await takes(other, name)


async def test_an_exclusive_lock_is_stepped_down_to_a_shared_one(site: Site, name: str) -> None:
    one, other = site.client("one"), site.client("other")
    writer = await one.acquire(name)
    reader = await one.acquire(name, under=writer, shared=True)
    assert await other.try_lock(name, shared=True) is None
    await writer.release()
    assert reader.is_valid() and reader.fencing_token == writer.fencing_token
    beside = await other.try_lock(name, shared=True)
    assert beside is not None, "exactly the writer's entry is given back"
    await beside.release()
    await reader.release()
    await takes(other, name)


async def test_a_lock_is_added_to_a_lease(site: Site, name: str) -> None:
    one, other = site.client("one"), site.client("other")
    first = await one.acquire(name)
    added = await one.acquire(f"{name}/more", under=first)
    assert added.lease_id == first.lease_id and added.locks == [f"default/{name}/more"]
    await added.release()
    await takes(other, f"{name}/more")
    assert await taken(other, name)
    await first.release()
    await takes(other, name)


async def test_nothing_is_added_to_a_lease_that_is_over(site: Site, name: str) -> None:
    client = site.client("one")
    lease = await client.acquire(name)
    await lease.release()
    with pytest.raises(leasehold.LeaseLost):
        await client.acquire(name, under=lease)
    await takes(client, name)


async def test_an_upgrade_is_denied(site: Site, name: str) -> None:
    client = site.client("one")
    shared = await client.acquire(name, shared=True)
    with pytest.raises(leasehold.UpgradeDenied):
        await client.acquire(name, under=shared)
    assert shared.is_valid()
    await shared.release()


async def test_another_limit_is_refused(site: Site, name: str) -> None:
    client = site.client("one")
    held = await client.acquire(name, permits=1, limit=5)
    with pytest.raises(leasehold.LimitMismatch):
        await client.acquire(name, permits=1, limit=6)
    with pytest.raises(leasehold.LimitMismatch):
        await client.try_lock(name, shared=True)
    await held.release()


async def test_a_namespace_is_another_lock(site: Site, name: str) -> None:
    client = site.client("one")
    one = await client.acquire(name)
    other = await client.try_lock(name, namespace="elsewhere")
    assert other is not None and other.locks == [f"elsewhere/{name}"]
    await one.release()
    await other.release()


async def test_one_client_holds_more_than_a_stream_can(site: Site, name: str) -> None:
    client = site.client("one")
    leases = await asyncio.gather(*(client.acquire(f"{name}/{lock}", ttl=20) for lock in range(1_100)))
    assert all(lease.is_valid() for lease in leases)
    await client.shutdown()
    assert not any(lease.is_valid() for lease in leases)
    await takes(site.client("other"), f"{name}/1099")
