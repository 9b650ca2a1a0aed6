"""Blocks and decorated functions: their releases, and the effects of a lost lock on the code inside."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

import leasehold
from leasehold import LostReason, aio, assert_held
from leasehold.testing import FakeBroker

TIMEOUT = 5.0


def test_a_block_acquires_and_releases(fake_broker: FakeBroker) -> None:
    client = fake_broker.client()
    with client.lock("a", reason="work") as lease:
        assert lease.is_valid() and fake_broker.holder_count("a") == 1
        with client.acquire("b") as other_lease:
            assert other_lease.is_valid()
        assert not other_lease.is_valid()
    assert not lease.is_valid() and fake_broker.holder_count("a") == 0


def test_many_threads_can_use_one_lock_object(fake_broker: FakeBroker) -> None:
    lock = fake_broker.client().lock("a")
    inside, most_inside = 0, 0

    def work() -> None:
        nonlocal inside, most_inside
        for _ in range(20):
            with lock:
                inside += 1
                most_inside = max(most_inside, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert most_inside == 1 and fake_broker.holder_count("a") == 0


def test_a_block_that_raises_releases_its_lock(fake_broker: FakeBroker) -> None:
    with pytest.raises(ZeroDivisionError), fake_broker.client().lock("a"):
        raise ZeroDivisionError
    assert fake_broker.holder_count("a") == 0


def test_an_interrupted_block_releases_without_waiting(fake_broker: FakeBroker) -> None:
    with pytest.raises(KeyboardInterrupt), fake_broker.client().lock("a"):
        raise KeyboardInterrupt
    assert fake_broker.holder_count("a") == 0


def test_a_block_whose_lock_was_lost_raises_at_its_end(fake_broker: FakeBroker) -> None:
    done = []
    with pytest.raises(leasehold.LeaseLost) as caught, fake_broker.client().lock("a") as lease:
        fake_broker.lose("a")
        assert lease.lost and lease.lost.reason is LostReason.STORE_LOST
        with pytest.raises(leasehold.LeaseLost):
            lease.check()
        done.append("the thread continues")
    assert caught.value.reason is LostReason.STORE_LOST and done


def test_an_exception_of_a_block_takes_precedence_over_its_loss(
    fake_broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ZeroDivisionError), fake_broker.client().lock("a"):
        fake_broker.lose("a")
        raise ZeroDivisionError
    assert "after an exception: the lock was lost" in caplog.text


def test_the_release_of_a_lost_lease_releases_nothing(fake_broker: FakeBroker) -> None:
    client, other_client = fake_broker.client("one"), fake_broker.client("other")
    lost = client.acquire("a")
    fake_broker.lose("a")
    held = other_client.acquire("a")
    with pytest.raises(leasehold.LeaseLost):
        lost.release()
    lost.release()
    assert held.is_valid() and fake_broker.holder_count("a") == 1
    held.release()


def test_on_lost_may_block(fake_broker: FakeBroker) -> None:
    notified: list[leasehold.Lease] = []
    started, may_continue = threading.Event(), threading.Event()

    def on_lost(lease: leasehold.Lease) -> None:
        notified.append(lease)
        started.set()
        may_continue.wait(TIMEOUT)

    client = fake_broker.client()
    lease = client.acquire("a", on_lost=on_lost)
    quiet = client.acquire("b", on_lost=on_lost)
    quiet.release()
    fake_broker.lose("a")
    assert started.wait(TIMEOUT)
    client.acquire("c").release()
    may_continue.set()
    assert notified == [lease], "on_lost must be called once, and not for a release"


def test_lost_can_be_waited_for(fake_broker: FakeBroker) -> None:
    lease = fake_broker.client().acquire("a")
    assert lease.lost.wait(0.01) is None and not lease.lost.is_set()
    timer = threading.Timer(0.05, fake_broker.lose, ("a", LostReason.REVOKED, "by hand"))
    timer.start()
    assert lease.lost.wait(TIMEOUT) is LostReason.REVOKED
    assert lease.lost.loss == leasehold.Loss(LostReason.REVOKED, "by hand")
    assert lease.lost.wait(0) is LostReason.REVOKED
    timer.join()


def test_a_decorated_function_holds_its_lock(fake_broker: FakeBroker) -> None:
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


def test_assert_held_detects_a_missing_lock(fake_broker: FakeBroker) -> None:
    client = fake_broker.client()
    with pytest.raises(leasehold.NotHeld):
        assert_held("a")
    with client.lock_all(["a", "b"]) as lease:
        assert assert_held("b") is lease
        with pytest.raises(leasehold.NotHeld):
            assert_held("c")
        with pytest.raises(leasehold.NotHeld):
            assert_held(leasehold.Target("a", namespace="elsewhere"))
        checked: list[bool] = []

        def check() -> None:
            with pytest.raises(leasehold.NotHeld):
                assert_held("a")
            checked.append(True)

        thread = threading.Thread(target=check)
        thread.start()
        thread.join(TIMEOUT)
        assert checked, "another thread must not hold the lock"
    with pytest.raises(leasehold.NotHeld):
        assert_held("a")
    with pytest.raises(leasehold.LeaseLost), client.lock("a"):
        fake_broker.lose("a")
        assert_held("a")


def test_an_injected_error_is_raised_once(fake_broker: FakeBroker) -> None:
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
                await asyncio.sleep(TIMEOUT)
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


async def test_a_task_can_continue_after_a_loss(fake_broker: FakeBroker) -> None:
    client = fake_broker.aio_client()
    for _ in range(3):
        with pytest.raises(leasehold.LeaseLost):
            async with client.lock("a"):
                fake_broker.lose("a")
                await asyncio.sleep(TIMEOUT)
        await asyncio.sleep(0)


async def test_a_cancelled_task_releases_its_lock(fake_broker: FakeBroker) -> None:
    client = fake_broker.aio_client()

    async def work() -> None:
        async with client.lock("a"):
            await asyncio.sleep(TIMEOUT)

    task = asyncio.ensure_future(work())
    while fake_broker.holder_count("a") == 0:
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fake_broker.holder_count("a") == 0


if sys.version_info >= (3, 11):
    # Tasks of older versions do not count their cancellations.

    async def test_a_cancellation_during_a_loss_stays_a_cancellation(fake_broker: FakeBroker) -> None:
        client = fake_broker.aio_client()
        task = asyncio.current_task()
        assert task is not None

        async def work() -> None:
            async with client.lock("a"):
                inner = asyncio.current_task()
                assert inner is not None
                fake_broker.lose("a")
                asyncio.get_running_loop().call_soon(inner.cancel)
                await asyncio.sleep(TIMEOUT)

        with pytest.raises(asyncio.CancelledError):
            await asyncio.ensure_future(work())


async def test_each_nested_block_ends_with_its_own_loss(fake_broker: FakeBroker) -> None:
    client = fake_broker.aio_client()
    async with client.lock("outer") as outer:
        with pytest.raises(leasehold.LeaseLost):
            async with client.lock("inner"):
                fake_broker.lose("inner")
                await asyncio.sleep(TIMEOUT)
        assert outer.is_valid()
    with pytest.raises(leasehold.LeaseLost):
        async with client.lock("outer"), client.lock("inner") as inner:
            fake_broker.lose("outer")
            await asyncio.sleep(TIMEOUT)
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
            await asyncio.sleep(TIMEOUT)

    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(work(), 0.05)
    while fake_broker.holder_count("a"):
        await asyncio.sleep(0)


async def test_a_loss_that_the_block_suppresses_is_raised_at_its_end(fake_broker: FakeBroker) -> None:
    client = fake_broker.aio_client()
    with pytest.raises(leasehold.LeaseLost):
        async with client.lock("a"):
            fake_broker.lose("a")
            try:
                await asyncio.sleep(TIMEOUT)
            except asyncio.CancelledError:
                pass


async def test_a_cancelled_call_leaves_the_queue(fake_broker: FakeBroker) -> None:
    client = fake_broker.aio_client()
    held = await client.acquire("a")
    pending = asyncio.ensure_future(client.acquire("a"))
    while fake_broker.queue_length("a") == 0:
        await asyncio.sleep(0)
    pending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pending
    assert fake_broker.queue_length("a") == 0
    await held.release()
    assert fake_broker.holder_count("a") == 0


async def test_a_grant_of_a_cancelled_call_is_released(fake_broker: FakeBroker) -> None:
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


async def test_on_lost_is_called_by_the_event_loop(fake_broker: FakeBroker) -> None:
    notified: asyncio.Future[aio.Lease] = asyncio.get_running_loop().create_future()
    lease = await fake_broker.aio_client().acquire("a", on_lost=notified.set_result)
    pending = asyncio.ensure_future(lease.lost.wait())
    fake_broker.lose("a", LostReason.MAX_HOLD)
    assert await asyncio.wait_for(notified, TIMEOUT) is lease
    assert await pending is LostReason.MAX_HOLD and lease.lost


async def test_a_decorated_coroutine_function_holds_its_lock(fake_broker: FakeBroker) -> None:
    client = fake_broker.aio_client()

    @client.locked("a")
    async def work(lose: bool) -> int:
        lease = assert_held("a")
        inner = asyncio.ensure_future(held_inside())
        await inner
        if lose:
            fake_broker.lose("a")
            await asyncio.sleep(TIMEOUT)
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


async def test_many_tasks_can_use_one_lock_object(fake_broker: FakeBroker) -> None:
    lock = fake_broker.aio_client().lock("a")
    inside, most_inside = 0, 0

    async def work() -> None:
        nonlocal inside, most_inside
        async with lock:
            inside += 1
            most_inside = max(most_inside, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(work() for _ in range(30)))
    assert most_inside == 1 and fake_broker.holder_count("a") == 0
