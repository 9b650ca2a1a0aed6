"""Programs that use the client: they end, are killed, stand still, fork, and compute without a pause."""

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
from flavours import Flavour, client_of
from processes import Broker, Process

import leasehold
from leasehold import LostReason, aio

TTL = 2.0
EXPIRY = TTL * 1.2 + 0.25

#: What each program begins with.
_BEGIN = """
import os, signal, sys, time
import leasehold
client = leasehold.Client({url!r}, owner="program"{settings})
lease = client.acquire("a", ttl={ttl})
print("held", lease.fencing_token, flush=True)
"""


Program = Callable[..., Process]


@pytest.fixture
def program(start: Callable[..., Any]) -> Program:
    """Runs Python code that goes on after it has the lock, and ends with the test."""

    def begin(url: str, code: str, ttl: float = TTL, settings: str = "") -> Process:
        source = _BEGIN.format(url=url, ttl=ttl, settings=settings) + code
        process: Process = start(Process, [sys.executable, "-u", "-c", source])
        process.line(r"^held (\d+)")
        return process

    return begin


def free_after(broker: Broker, since: float) -> float:
    """How long after that moment the lock was free."""
    with leasehold.Client(broker.url, owner="next") as client:
        client.acquire("a", wait=30).release()
        return time.monotonic() - since


def test_the_end_of_a_program_gives_back(program: Program, broker: Broker) -> None:
    process = program(broker.url, "", ttl=30)
    assert process.ended() == 0
    assert free_after(broker, time.monotonic()) < 1


def test_the_end_of_an_asyncio_program_gives_back(program: Program, broker: Broker) -> None:
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
    process.line("^ends")
    assert process.ended() == 0
    with leasehold.Client(broker.url) as client:
        client.acquire("b", wait=1).release()


def test_an_exception_gives_back(program: Program, broker: Broker) -> None:
    process = program(broker.url, "raise SystemExit(3)", ttl=30)
    assert process.ended() == 3
    assert free_after(broker, time.monotonic()) < 1


def test_a_program_may_leave_its_locks_to_run_out(program: Program, broker: Broker) -> None:
    process = program(broker.url, "", settings=", release_at_exit=False")
    assert process.ended() == 0
    ended = time.monotonic()
    assert TTL * 0.6 < free_after(broker, ended) <= EXPIRY + 0.5


def test_a_killed_program_is_replaced_when_its_time_is_over(program: Program, broker: Broker) -> None:
    process = program(broker.url, "signal.pause()")
    process.kill()
    assert TTL * 0.6 < free_after(broker, time.monotonic()) <= EXPIRY + 0.5


@pytest.mark.parametrize("fault", [Process.pause, Process.kill])
def test_a_program_ends_in_time_without_its_broker(
    program: Program, broker: Broker, fault: Callable[[Process], None]
) -> None:
    code = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""
    process = program(broker.url, code)
    process.line("^ready")
    fault(broker.process)
    process.signal(signal.SIGTERM)
    begun = time.monotonic()
    assert process.ended() == 0
    # 2 s for the broker, the rest for the interpreter on a busy machine.
    assert time.monotonic() - begun < 4


def test_a_program_that_stood_still_knows_at_its_first_look(program: Program, broker: Broker) -> None:
    code = """
print(lease.is_valid(), flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
print("first look", lease.is_valid(), lease.lost_reason, lease.remaining(), flush=True)
time.sleep(1)
print("second look", lease.is_valid(), flush=True)
try:
    lease.release()
except leasehold.LeaseLost as error:
    print("told", error.reason, flush=True)
"""
    process = program(broker.url, code)
    process.line("^True")
    while process.state() != "T":
        time.sleep(0.01)
    stopped = time.monotonic()
    with leasehold.Client(broker.url, owner="next") as client:
        lease = client.acquire("a", wait=30)
        assert time.monotonic() - stopped >= TTL * 0.6
        process.resume()
        process.line(r"^first look False LostReason.EXPIRED 0.0")
        process.line("^second look False")
        process.line("^told LostReason.EXPIRED")
        assert process.ended() == 0
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
    process.line("^still True")
    assert process.ended() == 0


async def test_a_blocked_event_loop_keeps_its_lock(shared_broker: Broker) -> None:
    client = aio.Client(shared_broker.url)
    async with client.lock("blocked-loop", ttl=3) as lease:
        time.sleep(5)
        lease.check()
    await client.shutdown()


def test_on_lost_cannot_hold_heartbeats_up(shared_broker: Broker, name: str) -> None:
    client = leasehold.Client(shared_broker.url)
    blocked, go_on = threading.Event(), threading.Event()

    def block(_: leasehold.Lease) -> None:
        blocked.set()
        go_on.wait(10)

    kept = client.acquire(f"{name}/kept", ttl=3)
    lost = client.acquire(f"{name}/lost", ttl=1, max_hold=1, on_lost=block)
    assert blocked.wait(5)
    time.sleep(4)
    assert kept.is_valid() and not lost.is_valid()
    go_on.set()
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


def test_a_child_of_a_fork_does_not_use_its_parents_client(program: Program, broker: Broker) -> None:
    process = program(broker.url, _FORK)
    process.line("^child False FORKED 0.0 Forked Forked LeaseLost Forked Forked Forked$")
    process.line("^code 7$")
    process.line("^parent True$")
    assert process.ended() == 0


def test_a_child_of_a_fork_may_make_a_client_of_its_own(program: Program, broker: Broker) -> None:
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
    process.line("^child None$")
    process.line("^code 7 True$")
    assert process.ended() == 0


def test_a_client_made_before_a_fork_and_used_after_it(broker: Broker, tmp_path: Path) -> None:
    client = leasehold.Client(broker.url, owner="either")
    said = tmp_path / "said"
    child = os.fork()
    if child == 0:
        try:
            lease = client.acquire("a", ttl=30)
            said.write_text(str(lease.fencing_token))
            lease.release()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    lease = client.acquire("a")
    assert lease.fencing_token > int(said.read_text()) > 0
    lease.release()
    client.shutdown()


def test_an_interrupted_call_leaves_the_line(program: Program, broker: Broker) -> None:
    with leasehold.Client(broker.url) as client:
        held = client.acquire("b")
        code = """
try:
    client.acquire("b", on_queue=lambda place: print("waits", flush=True))
except KeyboardInterrupt:
    print("interrupted", flush=True)
    signal.pause()
"""
        process = program(broker.url, code)
        process.line("^waits")
        process.signal(signal.SIGINT)
        process.line("^interrupted")
        until = time.monotonic() + 5
        while (state := client.get("b")) is None or state.queue_length:
            assert time.monotonic() < until, "it waits still"
        held.release()


async def test_calls_that_are_cancelled_anywhere_leave_nothing(broker: Broker, flavour: Flavour) -> None:
    client = aio.Client(broker.url)
    other = client_of(flavour, broker.url)
    held = await other.acquire("held", ttl=10)
    for round_number in range(150):
        lock = "held" if round_number % 3 == 0 else f"free-{round_number % 5}"
        call = asyncio.ensure_future(client.acquire(lock, ttl=30))
        pause = (round_number % 30) * 0.0003
        await asyncio.sleep(pause)
        call.cancel()
        try:
            lease = await call
            lease.grip.give_back()
        except asyncio.CancelledError:
            pass
    for number in range(5):
        taken = await other.acquire(f"free-{number}", wait=3)
        await taken.release()
    until = time.monotonic() + 3
    while (state := await other.get("held")) is None or state.queue_length:
        assert time.monotonic() < until, "somebody waits still"
    assert held.is_valid()
    await held.release()
    await client.shutdown()


@pytest.mark.parametrize("way", ["lost", "kept"])
def test_a_latched_loss_stays(broker: Broker, way: str) -> None:
    with leasehold.Client(broker.url) as client:
        lease = client.acquire("a", ttl=TTL)
        broker.process.pause()
        if way == "lost":
            assert lease.lost.wait(10) is LostReason.EXPIRED
        else:
            time.sleep(0.3)
        broker.process.resume()
        time.sleep(TTL)
        assert lease.is_valid() is (way == "kept")
