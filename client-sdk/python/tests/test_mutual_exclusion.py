"""Mutual exclusion of many callers with few locks, while connections are broken and brokers are killed.

The callers use both interfaces. No two holders of a lock overlap, and fencing tokens rise.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable

import pytest
from processes import Broker
from proxy import Proxy

import leasehold
from leasehold import aio
from leasehold._core import clock

TTL = 3.0
LOCKS = 3
SECONDS = 12.0
CALLERS = 6


@dataclass(frozen=True)
class HoldInterval:
    """A period in which a caller relied on a lock."""

    lock: int
    token: int
    relied_from: float
    relied_until: float


class Oracle:
    """The oracle, which records all intervals and checks them for overlaps."""

    def __init__(self) -> None:
        self._intervals: list[HoldInterval] = []
        self.deadline = clock.now() + SECONDS

    def has_ended(self) -> bool:
        """Returns true if the time for new intervals has passed."""
        return clock.now() >= self.deadline

    def record(self, lock: int, lease: leasehold.Lease | aio.Lease, relied_from: float, relied_until: float) -> None:
        """Records an interval."""
        self._intervals.append(HoldInterval(lock, lease.fencing_token, relied_from, relied_until))

    def verdict(self) -> tuple[int, int, int]:
        """Returns the numbers of intervals, of overlaps with the previous one, and of tokens that did not rise."""
        overlaps = regressions = 0
        for lock in range(LOCKS):
            intervals = sorted(
                (interval for interval in self._intervals if interval.lock == lock),
                key=lambda interval: interval.relied_from,
            )
            for before, after in zip(intervals, intervals[1:]):
                overlaps += after.relied_from < before.relied_until
                regressions += after.token <= before.token
        return len(self._intervals), overlaps, regressions


def test_the_oracle_detects_overlaps_and_token_regressions() -> None:
    oracle = Oracle()
    for token, relied_from, relied_until in ((1, 0.0, 2.0), (2, 1.0, 3.0), (2, 4.0, 5.0)):
        oracle._intervals.append(HoldInterval(0, token, relied_from, relied_until))
    assert oracle.verdict() == (3, 1, 1)


def hold_in_thread(client: leasehold.Client, oracle: Oracle) -> None:
    """Acquires locks and relies on them, in a thread."""
    while not oracle.has_ended():
        lock = random.randrange(LOCKS)
        try:
            with client.lock(f"lock-{lock}", ttl=TTL, wait=5) as lease:
                relied_from = relied_until = clock.now()
                hold_until = relied_from + random.uniform(0, 0.05)
                while (now := clock.now()) < hold_until and lease.is_valid():
                    relied_until = now
                    time.sleep(0.001)
                oracle.record(lock, lease, relied_from, relied_until)
        except (leasehold.WaitTimeout, leasehold.Unavailable, leasehold.LeaseLost, leasehold.Unconfirmed):
            continue


async def hold_in_task(client: aio.Client, oracle: Oracle) -> None:
    """Acquires locks and relies on them, in a task."""
    while not oracle.has_ended():
        lock = random.randrange(LOCKS)
        try:
            # Some calls are cancelled.
            lease = await asyncio.wait_for(client.acquire(f"lock-{lock}", ttl=TTL), random.uniform(0.01, 5))
        except (asyncio.TimeoutError, leasehold.Unavailable):
            continue
        relied_from = relied_until = clock.now()
        hold_until = relied_from + random.uniform(0, 0.05)
        while (now := clock.now()) < hold_until and lease.is_valid():
            relied_until = now
            await asyncio.sleep(0.001)
        oracle.record(lock, lease, relied_from, relied_until)
        try:
            await lease.release()
        except (leasehold.LeaseLost, leasehold.Unconfirmed):
            continue


def inject_faults(oracle: Oracle, proxies: list[Proxy], brokers: list[Broker]) -> tuple[int, int]:
    """Breaks connections, and kills and restarts one broker at a time. Returns the numbers of both."""
    broken = killed = 0
    while not oracle.has_ended():
        time.sleep(random.uniform(0.3, 0.8))
        broken += random.choice(proxies).break_connections()
        if random.random() < 0.3:
            killed += 1
            broker = random.choice(brokers)
            broker.kill()
            time.sleep(random.uniform(0, 0.3))
            broker.restart()
    return broken, killed


@pytest.mark.timeout(90)
def test_no_two_holders_overlap(start: Callable[..., Any], two_brokers: list[Broker]) -> None:
    proxies = [start(Proxy, broker.addr) for broker in two_brokers]
    urls = [proxy.url for proxy in proxies]
    clients = [leasehold.Client(urls), leasehold.Client(urls[::-1])]
    oracle = Oracle()

    connected = threading.Event()

    async def tasks() -> None:
        async with aio.Client(urls) as first_client, aio.Client(urls[::-1]) as second_client:
            connected.set()
            await asyncio.gather(
                *(hold_in_task(random.choice((first_client, second_client)), oracle) for _ in range(CALLERS))
            )

    threads = [threading.Thread(target=hold_in_thread, args=(clients[number % 2], oracle)) for number in range(CALLERS)]
    threads.append(threading.Thread(target=lambda: asyncio.run(tasks())))
    for thread in threads:
        thread.start()
    # Clients connect before the first fault, since connecting fails if no broker answers.
    assert connected.wait(20)
    broken, killed = inject_faults(oracle, proxies, two_brokers)
    for thread in threads:
        thread.join(40)
        assert not thread.is_alive(), "a call does not end"
    intervals, overlaps, regressions = oracle.verdict()
    print(f"intervals={intervals} broken={broken} killed={killed} overlaps={overlaps} regressions={regressions}")
    assert broken > 0 and killed > 0 and intervals > 50
    assert (overlaps, regressions) == (0, 0)
    # No lock stays held.
    for lock in range(LOCKS):
        clients[0].acquire(f"lock-{lock}", wait=10).release()
    for client in clients:
        client.shutdown()
