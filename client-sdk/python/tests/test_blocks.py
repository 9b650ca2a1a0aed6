"""Blocks and decorated functions: what is given back when, and what a loss does to the code inside."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

import leasehold
from leasehold import LostReason, aio, assert_held
from leasehold.testing import FakeBroker

SOON = 5.0


def test_a_block_holds_and_gives_back(fake_broker: FakeBroker) -> None:
    client = fake_broker.client()
    with client.lock("a", reason="work") as lease:
        assert lease.is_valid() and fake_broker.holder_count("a") == 1
        with client.acquire("b") as other:
            assert other.is_valid()
        assert not other.is_valid()
    assert not lease.is_valid() and fake_broker.holder_count("a") == 0


def test_a_lock_is_entered_by_many_threads(fake_broker: FakeBroker) -> None:
    lock = fake_broker.client().lock("a")
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with lock:
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert most == 1 and fake_broker.holder_count("a") == 0


def test_a_block_that_fails_gives_back(fake_broker: FakeBroker) -> None:
    with pytest.raises(ZeroDivisionError), fake_broker.client().lock("a"):
        raise ZeroDivisionError
    assert fake_broker.holder_count("a") == 0


def test_an_interrupted_block_does_not_wait(fake_broker: FakeBroker) -> None:
    with pytest.raises(KeyboardInterrupt), fake_broker.client().lock("a"):
        raise KeyboardInterrupt
    assert fake_broker.holder_count("a") == 0


def test_a_block_whose_lock_was_lost_says_so_at_its_end(fake_broker: FakeBroker) -> None:
    done = []
    with pytest.raises(leasehold.LeaseLost) as caught, fake_broker.client().lock("a") as lease:
        fake_broker.lose("a")
        assert lease.lost and lease.lost.reason is LostReason.STORE_LOST
        with pytest.raises(leasehold.LeaseLost):
            lease.check()
        done.append("nothing stops a thread")
    assert caught.value.reason is LostReason.STORE_LOST and done


def test_the_error_of_a_block_goes_before_its_loss(fake_broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError), fake_broker.client().lock("a"):
        fake_broker.lose("a")
        raise ZeroDivisionError
    assert "after an exception: the lock was lost" in caplog.text


def test_a_lost_lease_gives_nothing_back(fake_broker: FakeBroker) -> None:
    one, other = fake_broker.client("one"), fake_broker.client("other")
    lost = one.acquire("a")
    fake_broker.lose("a")
    held = other.acquire("a")
    with pytest.raises(leasehold.LeaseLost):
        lost.release()
    lost.release()
    assert held.is_valid() and fake_broker.holder_count("a") == 1
    held.release()


def test_on_lost_may_block(fake_broker: FakeBroker) -> None:
    told: list[leasehold.Lease] = []
    begun, go_on = threading.Event(), threading.Event()

    def on_lost(lease: leasehold.Lease) -> None:
        told.append(lease)
        begun.set()
        go_on.wait(SOON)

    client = fake_broker.client()
    lease = client.acquire("a", on_lost=on_lost)
    quiet = client.acquire("b", on_lost=on_lost)
    quiet.release()
    fake_broker.lose("a")
    assert begun.wait(SOON)
    client.acquire("c").release()
    go_on.set()
    assert told == [lease], "once, and not for a release"


def test_lost_is_waited_for(fake_broker: FakeBroker) -> None:
    lease = fake_broker.client().acquire("a")
    assert lease.lost.wait(0.01) is None and not lease.lost.is_set()
    timer = threading.Timer(0.05, fake_broker.lose, ("a", LostReason.REVOKED, "by hand"))
    timer.start()
    assert lease.lost.wait(SOON) is LostReason.REVOKED
    assert lease.lost.loss == leasehold.Loss(LostReason.REVOKED, "by hand")
    assert lease.lost.wait(0) is LostReason.REVOKED
    timer.join()


def test_a_function_is_locked(fake_broker: FakeBroker) -> None:
    client = fake_broker.client()

    @client.locked("daily-report", ttl=5)
    def report(pages: int) -> int:
        """Writes it."""
        assert assert_held("daily-report").is_valid()
        return pages

    @client.locked(lambda order: f"orders/{order}")
    def ship(order: int) -> bool:
        return assert_held(f"orders/{order}").locks == [f"default/orders/{order}"]

    assert report(3) == 3 and report.__doc__ == "Writes it."
    assert ship(42)
    assert fake_broker.holder_count("daily-report") == 0
    with pytest.raises(TypeError, match=r"leasehold\.aio"):

        @client.locked("a")
        async def wrong() -> None: ...


def test_assert_held_finds_wrong_wiring(fake_broker: FakeBroker) -> None:
    client = fake_broker.client()
    with pytest.raises(leasehold.NotHeld):
        assert_held("a")
    with client.lock_all(["a", "b"]) as lease:
        assert assert_held("b") is lease
        with pytest.raises(leasehold.NotHeld):
            assert_held("c")
        with pytest.raises(leasehold.NotHeld):
            assert_held(leasehold.Target("a", namespace="elsewhere"))
        found: list[bool] = []

        def look() -> None:
            with pytest.raises(leasehold.NotHeld):
                assert_held("a")
            found.append(True)

        thread = threading.Thread(target=look)
        thread.start()
        thread.join(SOON)
        assert found, "another thread holds nothing by itself"
    with pytest.raises(leasehold.NotHeld):
        assert_held("a")
    with pytest.raises(leasehold.LeaseLost), client.lock("a"):
        fake_broker.lose("a")
        assert_held("a")


def test_an_error_of_the_fake_is_told_once(fake_broker: FakeBroker) -> None:
    client = fake_broker.client()
    fake_broker.refuse("a", leasehold.StoreRecovering("wait", 3.0))
    with pytest.raises(leasehold.StoreRecovering) as caught:
        client.acquire("a")
    assert caught.value.retry_after == 3.0
    client.acquire("a").release()


async def test_a_task_is_cancelled_on_loss(fake_broker: FakeBroker) -> None:
    client = fake_broker.aio_client()
    stopped: list[str] = []

    async def work() -> None:
        async with client.lock("a"):
            try:
                await asyncio.sleep(SOON)
            except asyncio.CancelledError:
                stopped.append("here")
                raise

    task = asyncio.ensure_future(work())
    while fake_broker.holder_count("a") == 0:
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    fake_broker.lose("a")
    with pytest.raises(leasehold.LeaseLost) as caught:
        await task
    assert caught.value.reason is LostReason.STORE_LOST and stopped == ["here"]
    if sys.version_info >= (3, 11):
        assert task.cancelling() == 0


async def test_a_task_goes_on_after_a_loss(fake_broker: FakeBroker) -> None:
    client = fake_broker.aio_client()
    for _ in range(3):
        with pytest.raises(leasehold.LeaseLost):
            async with client.lock("a"):
                fake_broker.lose("a")
                await asyncio.sleep(SOON)
        await asyncio.sleep(0)


async def test_a_cancelled_task_is_cancelled_and_gives_back(fake_broker: FakeBroker) -> None:
    client = fake_broker.aio_client()

    async def work() -> None:
        async with client.lock("a"):
            await asyncio.sleep(SOON)

    task = asyncio.ensure_future(work())
    while fake_broker.holder_count("a") == 0:
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fake_broker.holder_count("a") == 0


if sys.version_info >= (3, 11):
    # Before, a task does not count who has cancelled it.

    async def test_a_cancellation_beside_a_loss_stays_one(fake_broker: FakeBroker) -> None:
        client = fake_broker.aio_client()
        task = asyncio.current_task()
        assert task is not None

        async def work() -> None:
            async with client.lock("a"):
                inner = asyncio.current_task()
                assert inner is not None
                fake_broker.lose("a")
                asyncio.get_running_loop().call_soon(inner.cancel)
                await asyncio.sleep(SOON)

        with pytest.raises(asyncio.CancelledError):
            await asyncio.ensure_future(work())


async def test_nested_blocks_are_left_by_their_own_loss(fake_broker: FakeBroker) -> None:
    client = fake_broker.aio_client()
    async with client.lock("outer") as outer:
        with pytest.raises(leasehold.LeaseLost):
            async with client.lock("inner"):
                fake_broker.lose("inner")
                await asyncio.sleep(SOON)
        assert outer.is_valid()
    with pytest.raises(leasehold.LeaseLost):
        async with client.lock("outer"), client.lock("inner") as inner:
            fake_broker.lose("outer")
            await asyncio.sleep(SOON)
    assert not inner.is_valid() and fake_broker.holder_count("inner") == 0


async def test_a_release_in_the_block_cancels_nothing(fake_broker: FakeBroker) -> None:
    client = fake_broker.aio_client()
    async with client.lock("a") as lease:
        await lease.release()
        await asyncio.sleep(0.02)
    assert fake_broker.holder_count("a") == 0


async def test_a_timeout_around_a_block_stays_a_timeout(fake_broker: FakeBroker) -> None:
    client = fake_broker.aio_client()

    async def work() -> None:
        async with client.lock("a"):
            await asyncio.sleep(SOON)

    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(work(), 0.05)
    while fake_broker.holder_count("a"):
        await asyncio.sleep(0)


async def test_a_loss_that_the_block_swallows_is_told_at_its_end(fake_broker: FakeBroker) -> None:
    client = fake_broker.aio_client()
    with pytest.raises(leasehold.LeaseLost):
        async with client.lock("a"):
            fake_broker.lose("a")
            try:
                await asyncio.sleep(SOON)
            except asyncio.CancelledError:
                pass


async def test_a_call_that_is_cancelled_leaves_the_line(fake_broker: FakeBroker) -> None:
    client = fake_broker.aio_client()
    held = await client.acquire("a")
    waits = asyncio.ensure_future(client.acquire("a"))
    while fake_broker.queue_length("a") == 0:
        await asyncio.sleep(0)
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits
    assert fake_broker.queue_length("a") == 0
    await held.release()
    assert fake_broker.holder_count("a") == 0


async def test_a_grant_that_nobody_awaits_any_more_is_given_back(fake_broker: FakeBroker) -> None:
    client = fake_broker.aio_client()
    for polls in range(12):
        call = asyncio.ensure_future(client.acquire("a"))
        for _ in range(polls):
            await asyncio.sleep(0.0005 * (polls % 3))
        call.cancel()
        try:
            await (await call).release()
        except asyncio.CancelledError:
            pass
        while fake_broker.holder_count("a"):
            await asyncio.sleep(0)


async def test_on_lost_is_called_by_the_loop(fake_broker: FakeBroker) -> None:
    told: asyncio.Future[aio.Lease] = asyncio.get_running_loop().create_future()
    lease = await fake_broker.aio_client().acquire("a", on_lost=told.set_result)
    waits = asyncio.ensure_future(lease.lost.wait())
    fake_broker.lose("a", LostReason.MAX_HOLD)
    assert await asyncio.wait_for(told, SOON) is lease
    assert await waits is LostReason.MAX_HOLD and lease.lost


async def test_a_coroutine_function_is_locked(fake_broker: FakeBroker) -> None:
    client = fake_broker.aio_client()

    @client.locked("a")
    async def work(lose: bool) -> int:
        lease = assert_held("a")
        inner = asyncio.ensure_future(held_inside())
        await inner
        if lose:
            fake_broker.lose("a")
            await asyncio.sleep(SOON)
        return lease.fencing_token

    async def held_inside() -> None:
        assert_held("a")

    assert await work(False) == 1
    with pytest.raises(leasehold.LeaseLost):
        await work(True)
    with pytest.raises(leasehold.NotHeld):
        assert_held("a")
    with pytest.raises(TypeError, match="coroutine function"):

        @client.locked("a")
        def wrong() -> None: ...


async def test_many_tasks_enter_one_lock(fake_broker: FakeBroker) -> None:
    lock = fake_broker.aio_client().lock("a")
    inside, most = 0, 0

    async def work() -> None:
        nonlocal inside, most
        async with lock:
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(work() for _ in range(30)))
    assert most == 1 and fake_broker.holder_count("a") == 0
