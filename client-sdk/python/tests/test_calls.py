"""What the calls do, with a broker and with the fake, in threads and in asyncio alike."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings

import pytest
from flavours import SOON, Site, takes

import leasehold
from leasehold import LostReason, Place, aio


async def test_one_holds_and_the_next_has_a_larger_token(site: Site, name: str) -> None:
    one, other = site.client("one"), site.client("other")
    lease = await one.acquire(name, ttl=2)
    assert lease.is_valid() and lease.lost_reason is None and not lease.inner.lost
    lease.check()
    assert lease.fencing_token > 0 and lease.lease_id and lease.remaining() > 0
    assert lease.locks == [f"default/{name}"]
    assert lease.fencing_token_of(name) == lease.fencing_token
    assert lease.fencing_token_of("another") is None
    assert await other.try_lock(name) is None, "two have it"
    await lease.release()
    assert not lease.is_valid() and lease.lost_reason is LostReason.RELEASED
    assert lease.remaining() == 0
    with pytest.raises(leasehold.LeaseLost):
        lease.check()
    taken = await other.try_lock(name)
    assert taken is not None and taken.fencing_token > lease.fencing_token
    await lease.release()
    assert taken.is_valid(), "a second release does nothing"
    await taken.release()


async def test_a_wait_ends_with_who_was_in_the_way(site: Site, name: str) -> None:
    one, other = site.client("one"), site.client("other")
    lease = await one.acquire(name, reason="to be there")
    begun = time.monotonic()
    with pytest.raises(leasehold.WaitTimeout) as caught:
        await other.acquire(name, wait=0.3)
    assert time.monotonic() - begun >= 0.3
    (holder,) = caught.value.holders
    assert (holder.owner, holder.reason, holder.lease_id) == ("one", "to be there", lease.lease_id)
    assert "one (to be there)" in str(caught.value)
    with pytest.raises(leasehold.Held):
        await other.acquire(name, wait=0)
    await lease.release()


async def test_a_waiter_learns_its_place_and_is_granted_in_its_turn(site: Site, name: str) -> None:
    one, other = site.client("one"), site.client("other")
    lease = await one.acquire(name)
    first = asyncio.ensure_future(one.acquire(name))
    await site.waits_for(name, 1)
    places: list[Place] = []
    second = asyncio.ensure_future(other.acquire(name, on_queue=places.append))
    await site.waits_for(name, 2)
    await lease.release()
    leads = await asyncio.wait_for(first, SOON)
    assert not second.done()
    await leads.release()
    last = await asyncio.wait_for(second, SOON)
    assert last.fencing_token > leads.fencing_token > lease.fencing_token
    assert (places[0].position, places[0].queue_length) == (2, 2)
    assert [place.position for place in places] == sorted((place.position for place in places), reverse=True)
    await last.release()


async def test_a_hook_that_fails_ends_the_wait(site: Site, name: str) -> None:
    one, other = site.client("one"), site.client("other")
    lease = await one.acquire(name)

    def fail(_: Place) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await other.acquire(name, on_queue=fail)
    await site.waits_for(name, 0)
    await lease.release()


async def test_a_lease_that_nobody_refers_to_is_given_back(site: Site, name: str) -> None:
    one, other = site.client("one"), site.client("other")
    lease = await one.acquire(name, ttl=20)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del lease
        until = time.monotonic() + SOON
        # The thread that has called refers to it a little longer.
        while not warned and time.monotonic() < until:
            gc.collect()
            await asyncio.sleep(0)
    assert [str(one.message) for one in warned] == [f"nobody has released the lease of default/{name}"]
    await takes(other, name)


async def test_a_client_lives_as_long_as_its_leases(site: Site, name: str) -> None:
    other = site.client("other")
    lease = await site.client("one").acquire(name, ttl=3)
    gc.collect()
    await asyncio.sleep(4)
    assert lease.is_valid()
    assert await other.try_lock(name) is None
    await lease.release()


async def test_a_shutdown_gives_everything_back(site: Site, name: str) -> None:
    one, other = site.client("one"), site.client("other")
    lease = await one.acquire(name, ttl=20)
    waits = asyncio.ensure_future(one.acquire(name))
    await site.waits_for(name, 1)
    begun = time.monotonic()
    await one.shutdown()
    assert time.monotonic() - begun < 2.5
    with pytest.raises(leasehold.Closed):
        await asyncio.wait_for(waits, SOON)
    assert await lease.lost() is LostReason.CLOSED
    for call in (one.acquire(name), one.get(name)):
        with pytest.raises(leasehold.Closed):
            await call
    with pytest.raises(leasehold.LeaseLost):
        await lease.release()
    await takes(other, name)
    await one.shutdown()


async def test_attempts_are_counted(site: Site, name: str) -> None:
    one, other = site.client("one"), site.client("other")
    lease = await one.acquire(name)
    begun = time.monotonic()
    assert await other.try_lock(name, attempts=4, every=0.1) is None
    assert 0.3 * 0.75 <= time.monotonic() - begun < 1.2
    late = asyncio.ensure_future(other.try_lock(name, attempts=1_000, every=0.01))
    await lease.release()
    taken = await asyncio.wait_for(late, SOON)
    assert taken is not None
    await taken.release()


async def test_a_look_tells_who_holds_and_how_many_wait(site: Site, name: str) -> None:
    client = site.client("one")
    assert await client.get(name) is None
    lease = await client.acquire(name, reason="looked at")
    waits = asyncio.ensure_future(client.acquire(name))
    await site.waits_for(name, 1)
    state = await client.get(name)
    assert state is not None and state.queue_length == 1
    (holder,) = state.holders
    assert (holder.owner, holder.reason) == ("one", "looked at")
    assert holder.fencing_token == state.last_fencing_token == lease.fencing_token
    assert holder.since is not None and holder.remaining > 0
    await lease.release()
    await (await waits).release()


async def test_a_leader_is_elected_and_observed(site: Site, name: str) -> None:
    one, other, third = site.client("one"), site.client("other"), site.client("third")
    observer = third.inner.elect(name).observe()

    async def leader() -> leasehold.Holder | None:
        if isinstance(observer, aio.Observer):
            return await asyncio.wait_for(observer.next(), SOON)
        return await asyncio.wait_for(asyncio.to_thread(observer.next), SOON)

    async def campaign(election: leasehold.Election | aio.Election) -> leasehold.Lease | aio.Lease:
        if isinstance(election, aio.Election):
            return await election.campaign()
        return await asyncio.to_thread(election.campaign)

    assert await leader() is None
    leads = await campaign(one.inner.elect(name, reason="first"))
    seen = await leader()
    assert seen is not None and (seen.owner, seen.reason) == ("one", "first")
    assert seen.fencing_token == leads.fencing_token
    following = asyncio.ensure_future(campaign(other.inner.elect(name)))
    await site.waits_for(name, 1)
    await one.shutdown()
    follows = await asyncio.wait_for(following, SOON)
    seen = await leader()
    assert seen is not None and seen.owner == "other"
    assert follows.is_valid()
    await other.shutdown()


async def test_fields_that_are_not_legal_are_told(site: Site, name: str) -> None:
    client = site.client("one")
    with pytest.raises(TypeError, match="no such option: tll"):
        await client.acquire(name, tll=3)
    with pytest.raises(ValueError, match="not a span of time"):
        await client.acquire(name, ttl=-1)
    with pytest.raises(ValueError, match=r"range|seconds"):
        await client.acquire(name, ttl=1e20)
    with pytest.raises(TypeError, match="name or a Target"):
        await client.acquire(3)
    with pytest.raises(ValueError, match="either shared"):
        await client.acquire(name, shared=True, permits=1)
    await takes(client, name)
