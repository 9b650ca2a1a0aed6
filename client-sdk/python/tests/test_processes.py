"""Programs that use the client, and exit, are killed or stopped, fork, or compute without a pause."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable

import pytest
from interfaces import Interface, create_client
from processes import Broker, Process

import leasehold
from leasehold import LostReason, aio

TTL = 2.0
EXPIRY = TTL * 1.2 + 0.25

#: First lines of each program.
_PROLOGUE = """
import os, signal, sys, time
import leasehold
client = leasehold.Client({url!r}, owner="program"{settings})
lease = client.acquire("a", ttl={ttl})
print("held", lease.fencing_token, flush=True)
"""


Program = Callable[..., Process]


@pytest.fixture
def program(start: Callable[..., Any]) -> Program:
    """Returns a function that starts a program, which acquires a lock, runs the given code and ends with the test."""

    def create(url: str, code: str, ttl: float = TTL, settings: str = "") -> Process:
        source = _PROLOGUE.format(url=url, ttl=ttl, settings=settings) + code
        process: Process = start(Process, [sys.executable, "-u", "-c", source])
        process.wait_for_line(r"^held (\d+)")
        return process

    return create


def wait_until_free(broker: Broker, since: float) -> float:
    """Waits until the lock is free. Returns the time between ``since`` and then."""
    with leasehold.Client(broker.url, owner="next") as client:
        client.acquire("a", wait=30).release()
        return time.monotonic() - since


def test_the_exit_of_a_program_releases_its_lock(program: Program, broker: Broker) -> None:
    process = program(broker.url, "", ttl=30)
    assert process.wait_for_exit() == 0
    assert wait_until_free(broker, time.monotonic()) < 1


def test_the_exit_of_an_asyncio_program_releases_its_lock(program: Program, broker: Broker) -> None:
    code = f"""
import asyncio
from leasehold import aio
kept = aio.Client({broker.url!r})
async def main():
    global other
    other = await kept.acquire("b", ttl=30)
asyncio.run(main())
print("ends", flush=True)
"""
    process = program(broker.url, code, ttl=30)
    process.wait_for_line("^ends")
    assert process.wait_for_exit() == 0
    with leasehold.Client(broker.url) as client:
        client.acquire("b", wait=1).release()


def test_an_uncaught_exception_releases_the_lock(program: Program, broker: Broker) -> None:
    process = program(broker.url, "raise SystemExit(3)", ttl=30)
    assert process.wait_for_exit() == 3
    assert wait_until_free(broker, time.monotonic()) < 1


def test_a_program_can_leave_its_locks_to_expire(program: Program, broker: Broker) -> None:
    process = program(broker.url, "", settings=", release_at_exit=False")
    assert process.wait_for_exit() == 0
    ended = time.monotonic()
    assert TTL * 0.6 < wait_until_free(broker, ended) <= EXPIRY + 0.5


def test_the_lock_of_a_killed_program_expires(program: Program, broker: Broker) -> None:
    process = program(broker.url, "signal.pause()")
    process.kill()
    assert TTL * 0.6 < wait_until_free(broker, time.monotonic()) <= EXPIRY + 0.5


@pytest.mark.parametrize("fault", [Process.pause, Process.kill])
def test_a_program_exits_in_time_without_its_broker(
    program: Program, broker: Broker, fault: Callable[[Process], None]
) -> None:
    code = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""
    process = program(broker.url, code)
    process.wait_for_line("^ready")
    fault(broker.process)
    process.signal(signal.SIGTERM)
    started_at = time.monotonic()
    assert process.wait_for_exit() == 0
    # The shutdown waits 2 s for the broker. The rest is for the interpreter on a busy machine.
    assert time.monotonic() - started_at < 4


def test_a_stopped_program_detects_the_loss_at_its_first_check(program: Program, broker: Broker) -> None:
    code = """
print(lease.is_valid(), flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
print("first check", lease.is_valid(), lease.lost_reason, lease.remaining(), flush=True)
time.sleep(1)
print("second check", lease.is_valid(), flush=True)
try:
    lease.release()
except leasehold.LeaseLost as error:
    print("lost", error.reason, flush=True)
"""
    process = program(broker.url, code)
    process.wait_for_line("^True")
    while process.state() != "T":
        time.sleep(0.01)
    stopped = time.monotonic()
    with leasehold.Client(broker.url, owner="next") as client:
        lease = client.acquire("a", wait=30)
        assert time.monotonic() - stopped >= TTL * 0.6
        process.resume()
        process.wait_for_line(r"^first check False LostReason.EXPIRED 0.0")
        process.wait_for_line("^second check False")
        process.wait_for_line("^lost LostReason.EXPIRED")
        assert process.wait_for_exit() == 0
        lease.check()
        lease.release()


def test_a_computing_program_keeps_its_lock(program: Program, broker: Broker) -> None:
    code = """
until = time.monotonic() + 5
while time.monotonic() < until:
    sum(range(1000))
print("still", lease.is_valid(), flush=True)
"""
    process = program(broker.url, code, ttl=3)
    process.wait_for_line("^still True")
    assert process.wait_for_exit() == 0


async def test_a_blocked_event_loop_keeps_its_lock(shared_broker: Broker) -> None:
    client = aio.Client(shared_broker.url)
    async with client.lock("blocked-loop", ttl=3) as lease:
        time.sleep(5)
        lease.check()
    await client.shutdown()


def test_on_lost_cannot_delay_heartbeats(shared_broker: Broker, name: str) -> None:
    client = leasehold.Client(shared_broker.url)
    blocked, may_continue = threading.Event(), threading.Event()

    def block(_: leasehold.Lease) -> None:
        blocked.set()
        may_continue.wait(10)

    valid_lease = client.acquire(f"{name}/kept", ttl=3)
    lost_lease = client.acquire(f"{name}/lost", ttl=1, max_hold=1, on_lost=block)
    assert blocked.wait(5)
    time.sleep(4)
    assert valid_lease.is_valid() and not lost_lease.is_valid()
    may_continue.set()
    client.shutdown()


_FORK = """
child = os.fork()
if child == 0:
    seen = [lease.is_valid(), lease.lost_reason.name, lease.remaining()]
    for call in (lambda: client.try_lock("b"), lambda: client.get("a"), lease.check, lease.release,
                 lambda: client.acquire("a", under=lease), client.connect):
        try:
            call()
            seen.append("no error")
        except leasehold.Error as error:
            seen.append(type(error).__name__)
    del lease
    client.shutdown()
    print("child", *seen, flush=True)
    sys.exit(7)
print("code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
time.sleep(3)
print("parent", lease.is_valid(), flush=True)
lease.release()
"""


def test_a_forked_child_cannot_use_the_client_of_its_parent(program: Program, broker: Broker) -> None:
    process = program(broker.url, _FORK)
    process.wait_for_line("^child False FORKED 0.0 Forked Forked LeaseLost Forked Forked Forked$")
    process.wait_for_line("^code 7$")
    process.wait_for_line("^parent True$")
    assert process.wait_for_exit() == 0


def test_a_forked_child_can_create_a_client(program: Program, broker: Broker) -> None:
    code = f"""
child = os.fork()
if child == 0:
    with leasehold.Client({broker.url!r}, owner="child") as own:
        own.acquire("c").release()
        print("child", own.try_lock("a"), flush=True)
    sys.exit(7)
print("code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), lease.is_valid(), flush=True)
"""
    process = program(broker.url, code, ttl=20)
    process.wait_for_line("^child None$")
    process.wait_for_line("^code 7 True$")
    assert process.wait_for_exit() == 0


def test_a_client_can_be_created_before_and_used_after_a_fork(broker: Broker, tmp_path: Path) -> None:
    client = leasehold.Client(broker.url, owner="either")
    token_file = tmp_path / "said"
    child = os.fork()
    if child == 0:
        try:
            lease = client.acquire("a", ttl=30)
            token_file.write_text(str(lease.fencing_token))
            lease.release()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    lease = client.acquire("a")
    assert lease.fencing_token > int(token_file.read_text()) > 0
    lease.release()
    client.shutdown()


def test_an_interrupted_call_leaves_the_queue(program: Program, broker: Broker) -> None:
    with leasehold.Client(broker.url) as client:
        held = client.acquire("b")
        code = """
try:
    client.acquire("b", on_queue=lambda position: print("waits", flush=True))
except KeyboardInterrupt:
    print("interrupted", flush=True)
    signal.pause()
"""
        process = program(broker.url, code)
        process.wait_for_line("^waits")
        process.signal(signal.SIGINT)
        process.wait_for_line("^interrupted")
        deadline = time.monotonic() + 5
        while (state := client.get("b")) is None or state.queue_length:
            assert time.monotonic() < deadline, "the call is still queued"
        held.release()


async def test_calls_cancelled_at_any_moment_leave_nothing(broker: Broker, interface: Interface) -> None:
    client = aio.Client(broker.url)
    other_client = create_client(interface, broker.url)
    held = await other_client.acquire("held", ttl=10)
    for round_number in range(150):
        lock = "held" if round_number % 3 == 0 else f"free-{round_number % 5}"
        call = asyncio.ensure_future(client.acquire(lock, ttl=30))
        delay = (round_number % 30) * 0.0003
        await asyncio.sleep(delay)
        call.cancel()
        try:
            lease = await call
            lease.handle.release()
        except asyncio.CancelledError:
            pass
    for number in range(5):
        acquired = await other_client.acquire(f"free-{number}", wait=3)
        await acquired.release()
    deadline = time.monotonic() + 3
    while (state := await other_client.get("held")) is None or state.queue_length:
        assert time.monotonic() < deadline, "a call is still queued"
    assert held.is_valid()
    await held.release()
    await client.shutdown()


@pytest.mark.parametrize("outcome", ["lost", "kept"])
def test_a_lost_lease_stays_lost(broker: Broker, outcome: str) -> None:
    with leasehold.Client(broker.url) as client:
        lease = client.acquire("a", ttl=TTL)
        broker.process.pause()
        if outcome == "lost":
            assert lease.lost.wait(10) is LostReason.EXPIRED
        else:
            time.sleep(0.3)
        broker.process.resume()
        time.sleep(TTL)
        assert lease.is_valid() is (outcome == "kept")
