"""Takes and gives back locks beside redis-py's Lock on the same Redis, in turns; prints tables.

    python benchmark/run.py --rounds 5 --seconds 3

LEASEHOLD_SERVER names the broker; a figure is worth something only of a release build on a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Protocol

import redis
import redis.asyncio

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from processes import Broker, Redis

import leasehold
from leasehold import aio

CALLERS = (1, 64)
TTL = 10
PATIENCE = 60


@dataclass
class Visits:
    """What the callers of one round have done."""

    callers: int
    seconds: float
    pairs: list[int] = field(default_factory=list)
    longest_wait: float = 0.0
    hand_offs: int = 0
    last_holder: int = -1

    def entered(self, caller: int, waited: float) -> None:
        """A caller has the lock that all want. Called by whoever has it."""
        self.longest_wait = max(self.longest_wait, waited)
        if caller != self.last_holder:
            self.hand_offs += 1
            self.last_holder = caller

    @property
    def pairs_per_second(self) -> float:
        """Acquires with their releases."""
        return sum(self.pairs) / self.seconds

    @property
    def fairness(self) -> float:
        """Jain's index: 1 if all had it as often, 1 / callers if one had it always."""
        squares = sum(count * count for count in self.pairs)
        return sum(self.pairs) ** 2 / (len(self.pairs) * squares) if squares else 0.0


class Contender(Protocol):
    """One way to take locks."""

    name: str

    def round(self, callers: int, seconds: float, *, is_hot: bool) -> Visits:
        """Takes and gives back for so long: a lock for each caller, or one for all."""


def lock_name(caller: int, is_hot: bool) -> str:
    """The lock of a caller."""
    return "bench/hot" if is_hot else f"bench/{caller}"


class Threads:
    """A thread for each caller."""

    def __init__(self, name: str, pair: Callable[[str], Any]) -> None:
        self.name = name
        self._lock = pair

    def round(self, callers: int, seconds: float, *, is_hot: bool) -> Visits:
        """Takes and gives back for so long."""
        visits = Visits(callers, seconds)
        begin = threading.Barrier(callers + 1)
        until = [0.0]

        def work(caller: int) -> int:
            lock, pairs = self._lock(lock_name(caller, is_hot)), 0
            begin.wait()
            while time.monotonic() < until[0]:
                asked = time.monotonic()
                with lock:
                    if is_hot:
                        visits.entered(caller, time.monotonic() - asked)
                pairs += 1
            return pairs

        with ThreadPoolExecutor(callers) as pool:
            work_done = [pool.submit(work, caller) for caller in range(callers)]
            until[0] = time.monotonic() + seconds
            begin.wait()
            visits.pairs = [one.result() for one in work_done]
        return visits


class Tasks:
    """A task for each caller."""

    def __init__(self, name: str, open_client: Callable[[], Any], pair: Callable[[Any, str], Any]) -> None:
        self.name = name
        self._open = open_client
        self._lock = pair

    def round(self, callers: int, seconds: float, *, is_hot: bool) -> Visits:
        """Takes and gives back for so long."""
        return asyncio.run(self._round(callers, seconds, is_hot))

    async def _round(self, callers: int, seconds: float, is_hot: bool) -> Visits:
        visits = Visits(callers, seconds)
        async with self._open() as client:
            until = time.monotonic() + seconds

            async def work(caller: int) -> int:
                lock, pairs = self._lock(client, lock_name(caller, is_hot)), 0
                while time.monotonic() < until:
                    asked = time.monotonic()
                    async with lock:
                        if is_hot:
                            visits.entered(caller, time.monotonic() - asked)
                    pairs += 1
                return pairs

            visits.pairs = list(await asyncio.gather(*(work(caller) for caller in range(callers))))
        return visits


def contenders(broker: Broker, store: Redis) -> tuple[list[Contender], Callable[[], None]]:
    """All that are compared, and how they end."""
    client = leasehold.Client(broker.url).connect()
    plain = redis.Redis(port=store.port, max_connections=256)

    def redis_lock(name: str) -> Any:
        return plain.lock(name, timeout=TTL, blocking_timeout=PATIENCE, thread_local=False)

    def redis_task_lock(other: Any, name: str) -> Any:
        return other.lock(name, timeout=TTL, blocking_timeout=PATIENCE, thread_local=False)

    def task_lock(other: aio.Client, name: str) -> aio.Lock:
        return other.lock(name, ttl=TTL, wait=PATIENCE)

    all_of_them: list[Contender] = [
        Threads("leasehold", lambda name: client.lock(name, ttl=TTL, wait=PATIENCE)),
        Threads("redis-py Lock", redis_lock),
        Tasks("leasehold.aio", lambda: aio.Client(broker.url), task_lock),
        Tasks("redis-py asyncio Lock", lambda: redis.asyncio.Redis(port=store.port), redis_task_lock),
    ]

    def end() -> None:
        client.shutdown()
        plain.close()

    return all_of_them, end


def measure(rounds: int, seconds: float, broker: Broker, store: Redis) -> None:
    """Runs all in turns, and prints the medians."""
    compared, end = contenders(broker, store)
    for is_hot in (False, True):
        for callers in CALLERS:
            found: dict[str, list[Visits]] = {one.name: [] for one in compared}
            for _ in range(rounds):
                for one in compared:
                    found[one.name].append(one.round(callers, seconds, is_hot=is_hot))
            print_table(found, callers, is_hot)
    end()


def print_table(found: dict[str, list[Visits]], callers: int, is_hot: bool) -> None:
    """Medians of the rounds."""
    print(f"\n{callers} callers, {'one lock for all' if is_hot else 'a lock for each'}\n")
    heads = ["", "pairs/s"] + (["hand-offs/s", "longest wait", "Jain's index"] if is_hot else [])
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for name, rounds in found.items():

        def median(of: Callable[[Visits], float], rounds: list[Visits] = rounds) -> float:
            return statistics.median(of(one) for one in rounds)

        cells = [name, f"{median(lambda one: one.pairs_per_second):,.0f}"]
        if is_hot:
            cells.append(f"{median(lambda one: one.hand_offs / one.seconds):,.0f}")
            cells.append(f"{median(lambda one: one.longest_wait) * 1000:,.0f} ms")
            cells.append(f"{median(lambda one: one.fairness):.3f}")
        print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Starts a Redis and a broker on it, measures, and ends them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    store = Redis()
    try:
        broker = Broker(store.url)
        try:
            measure(arguments.rounds, arguments.seconds, broker, store)
        finally:
            broker.kill()
    finally:
        store.kill()


if __name__ == "__main__":
    main()
