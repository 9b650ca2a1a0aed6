"""Many callers of both interfaces want few locks while connections are cut and brokers are killed: nobody is inside
together with somebody else, and tokens rise.
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
class Visit:
    """A time in which somebody relied on a lock."""

    lock: int
    token: int
    entered: float
    ended: float


class Referee:
    """Sees every visit."""

    def __init__(self) -> None:
        self._visits: list[Visit] = []
        self.until = clock.now() + SECONDS

    def is_over(self) -> bool:
        """Whether nobody is to begin any more."""
        return clock.now() >= self.until

    def saw(self, lock: int, lease: leasehold.Lease | aio.Lease, entered: float, ended: float) -> None:
        """One more visit."""
        self._visits.append(Visit(lock, lease.fencing_token, entered, ended))

    def verdict(self) -> tuple[int, int, int]:
        """How many visits, how many overlap the one before, and how many have a smaller token."""
        overlaps = regressions = 0
        for lock in range(LOCKS):
            visits = sorted((one for one in self._visits if one.lock == lock), key=lambda one: one.entered)
            for before, after in zip(visits, visits[1:]):
                overlaps += after.entered < before.ended
                regressions += after.token <= before.token
        return len(self._visits), overlaps, regressions


def test_the_referee_sees_what_is_wrong() -> None:
    referee = Referee()
    for token, entered, ended in ((1, 0.0, 2.0), (2, 1.0, 3.0), (2, 4.0, 5.0)):
        referee._visits.append(Visit(0, token, entered, ended))
    assert referee.verdict() == (3, 1, 1)


def visit_in_thread(client: leasehold.Client, referee: Referee) -> None:
    """Takes locks and relies on them, in a thread."""
    while not referee.is_over():
        lock = random.randrange(LOCKS)
        try:
            with client.lock(f"lock-{lock}", ttl=TTL, wait=5) as lease:
                entered = ended = clock.now()
                stay = entered + random.uniform(0, 0.05)
                while (now := clock.now()) < stay and lease.is_valid():
                    ended = now
                    time.sleep(0.001)
                referee.saw(lock, lease, entered, ended)
        except (leasehold.WaitTimeout, leasehold.Unavailable, leasehold.LeaseLost, leasehold.Unconfirmed):
            continue


async def visit_in_task(client: aio.Client, referee: Referee) -> None:
    """Takes locks and relies on them, in a task."""
    while not referee.is_over():
        lock = random.randrange(LOCKS)
        try:
            # Some calls are given up.
            lease = await asyncio.wait_for(client.acquire(f"lock-{lock}", ttl=TTL), random.uniform(0.01, 5))
        except (asyncio.TimeoutError, leasehold.Unavailable):
            continue
        entered = ended = clock.now()
        stay = entered + random.uniform(0, 0.05)
        while (now := clock.now()) < stay and lease.is_valid():
            ended = now
            await asyncio.sleep(0.001)
        referee.saw(lock, lease, entered, ended)
        try:
            await lease.release()
        except (leasehold.LeaseLost, leasehold.Unconfirmed):
            continue


def disturb(referee: Referee, proxies: list[Proxy], brokers: list[Broker]) -> tuple[int, int]:
    """Cuts connections, and kills a broker at a time; how often each."""
    cuts = kills = 0
    while not referee.is_over():
        time.sleep(random.uniform(0.3, 0.8))
        cuts += random.choice(proxies).cut()
        if random.random() < 0.3:
            kills += 1
            victim = random.choice(brokers)
            victim.kill()
            time.sleep(random.uniform(0, 0.3))
            victim.restart()
    return cuts, kills


@pytest.mark.timeout(90)
def test_nobody_is_inside_together(start: Callable[..., Any], two_brokers: list[Broker]) -> None:
    proxies = [start(Proxy, broker.addr) for broker in two_brokers]
    urls = [proxy.url for proxy in proxies]
    clients = [leasehold.Client(urls), leasehold.Client(urls[::-1])]
    referee = Referee()

    connected = threading.Event()

    async def tasks() -> None:
        async with aio.Client(urls) as one, aio.Client(urls[::-1]) as other:
            connected.set()
            await asyncio.gather(*(visit_in_task(random.choice((one, other)), referee) for _ in range(CALLERS)))

    threads = [
        threading.Thread(target=visit_in_thread, args=(clients[number % 2], referee)) for number in range(CALLERS)
    ]
    threads.append(threading.Thread(target=lambda: asyncio.run(tasks())))
    for thread in threads:
        thread.start()
    # Nobody has to find a broker while all of them are gone.
    assert connected.wait(20)
    cuts, kills = disturb(referee, proxies, two_brokers)
    for thread in threads:
        thread.join(40)
        assert not thread.is_alive(), "a call does not end"
    visits, overlaps, regressions = referee.verdict()
    print(f"visits={visits} cuts={cuts} kills={kills} overlaps={overlaps} regressions={regressions}")
    assert cuts > 0 and kills > 0 and visits > 50
    assert (overlaps, regressions) == (0, 0)
    # Nothing is left behind.
    for lock in range(LOCKS):
        clients[0].acquire(f"lock-{lock}", wait=10).release()
    for client in clients:
        client.shutdown()
