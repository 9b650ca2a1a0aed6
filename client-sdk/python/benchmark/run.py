"""Measures acquires and releases beside redis-py's Lock on the same Redis, in turns, and prints tables.

    python benchmark/run.py --rounds 5 --seconds 3

LEASEHOLD_SERVER names the binary of the broker. Results are meaningful only with a release build on an idle machine.
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
WAIT = 60


@dataclass
class RoundResult:
    """Results of the callers of one round."""

    callers: int
    seconds: float
    pairs: list[int] = field(default_factory=list)
    longest_wait: float = 0.0
    hand_offs: int = 0
    last_holder: int = -1

    def record_acquire(self, caller: int, waited: float) -> None:
        """Records that a caller acquired the common lock. Called while that caller holds the lock."""
        self.longest_wait = max(self.longest_wait, waited)
        if caller != self.last_holder:
            self.hand_offs += 1
            self.last_holder = caller

    @property
    def pairs_per_second(self) -> float:
        """Acquires with their releases, per second."""
        return sum(self.pairs) / self.seconds

    @property
    def fairness(self) -> float:
        """Jain's index: 1 if all callers acquired the lock equally often, 1 / callers if only one acquired it."""
        squares = sum(count * count for count in self.pairs)
        return sum(self.pairs) ** 2 / (len(self.pairs) * squares) if squares else 0.0


class Contender(Protocol):
    """A lock implementation to compare."""

    name: str

    def round(self, callers: int, seconds: float, *, is_hot: bool) -> RoundResult:
        """Acquires and releases locks for ``seconds``: a separate lock for each caller, or one for all."""


def lock_name(caller: int, is_hot: bool) -> str:
    """Returns the name of the lock of a caller."""
    return "bench/hot" if is_hot else f"bench/{caller}"


class Threads:
    """A contender with a thread for each caller."""

    def __init__(self, name: str, pair: Callable[[str], Any]) -> None:
        self.name = name
        self._lock = pair

    def round(self, callers: int, seconds: float, *, is_hot: bool) -> RoundResult:
        """Acquires and releases locks for ``seconds``."""
        result = RoundResult(callers, seconds)
        start_barrier = threading.Barrier(callers + 1)
        deadline = [0.0]

        def work(caller: int) -> int:
            lock, pairs = self._lock(lock_name(caller, is_hot)), 0
            start_barrier.wait()
            while time.monotonic() < deadline[0]:
                requested_at = time.monotonic()
                with lock:
                    if is_hot:
                        result.record_acquire(caller, time.monotonic() - requested_at)
                pairs += 1
            return pairs

        with ThreadPoolExecutor(callers) as pool:
            futures = [pool.submit(work, caller) for caller in range(callers)]
            deadline[0] = time.monotonic() + seconds
            start_barrier.wait()
            result.pairs = [future.result() for future in futures]
        return result


class Tasks:
    """A contender with a task for each caller."""

    def __init__(self, name: str, open_client: Callable[[], Any], pair: Callable[[Any, str], Any]) -> None:
        self.name = name
        self._open = open_client
        self._lock = pair

    def round(self, callers: int, seconds: float, *, is_hot: bool) -> RoundResult:
        """Acquires and releases locks for ``seconds``."""
        return asyncio.run(self._round(callers, seconds, is_hot))

    async def _round(self, callers: int, seconds: float, is_hot: bool) -> RoundResult:
        result = RoundResult(callers, seconds)
        async with self._open() as client:
            deadline = time.monotonic() + seconds

            async def work(caller: int) -> int:
                lock, pairs = self._lock(client, lock_name(caller, is_hot)), 0
                while time.monotonic() < deadline:
                    requested_at = time.monotonic()
                    async with lock:
                        if is_hot:
                            result.record_acquire(caller, time.monotonic() - requested_at)
                    pairs += 1
                return pairs

            result.pairs = list(await asyncio.gather(*(work(caller) for caller in range(callers))))
        return result


def create_contenders(broker: Broker, store: Redis) -> tuple[list[Contender], Callable[[], None]]:
    """Creates all contenders, and a function that closes their clients."""
    client = leasehold.Client(broker.url).connect()
    plain = redis.Redis(port=store.port, max_connections=256)

    def redis_lock(name: str) -> Any:
        return plain.lock(name, timeout=TTL, blocking_timeout=WAIT, thread_local=False)

    def redis_task_lock(task_client: Any, name: str) -> Any:
        return task_client.lock(name, timeout=TTL, blocking_timeout=WAIT, thread_local=False)

    def task_lock(task_client: aio.Client, name: str) -> aio.Lock:
        return task_client.lock(name, ttl=TTL, wait=WAIT)

    created: list[Contender] = [
        Threads("leasehold", lambda name: client.lock(name, ttl=TTL, wait=WAIT)),
        Threads("redis-py Lock", redis_lock),
        Tasks("leasehold.aio", lambda: aio.Client(broker.url), task_lock),
        Tasks("redis-py asyncio Lock", lambda: redis.asyncio.Redis(port=store.port), redis_task_lock),
    ]

    def close_clients() -> None:
        client.shutdown()
        plain.close()

    return created, close_clients


def measure(rounds: int, seconds: float, broker: Broker, store: Redis) -> None:
    """Runs the contenders in turns and prints the medians."""
    contenders, close_clients = create_contenders(broker, store)
    for is_hot in (False, True):
        for callers in CALLERS:
            results: dict[str, list[RoundResult]] = {contender.name: [] for contender in contenders}
            for _ in range(rounds):
                for contender in contenders:
                    results[contender.name].append(contender.round(callers, seconds, is_hot=is_hot))
            print_table(results, callers, is_hot)
    close_clients()


def print_table(results: dict[str, list[RoundResult]], callers: int, is_hot: bool) -> None:
    """Prints the medians of the rounds."""
    print(f"\n{callers} callers, {'one lock for all' if is_hot else 'a lock for each'}\n")
    headers = ["", "pairs/s"] + (["hand-offs/s", "longest wait", "Jain's index"] if is_hot else [])
    print("| " + " | ".join(headers) + " |\n|" + "---|" * len(headers))
    for name, rounds in results.items():

        def median(of: Callable[[RoundResult], float], rounds: list[RoundResult] = rounds) -> float:
            return statistics.median(of(result) for result in rounds)

        cells = [name, f"{median(lambda result: result.pairs_per_second):,.0f}"]
        if is_hot:
            cells.append(f"{median(lambda result: result.hand_offs / result.seconds):,.0f}")
            cells.append(f"{median(lambda result: result.longest_wait) * 1000:,.0f} ms")
            cells.append(f"{median(lambda result: result.fairness):.3f}")
        print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Starts a Redis and a broker on it, measures, and stops both."""
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
