"""A peer in Python: redis-py's asyncio Lock. Arguments and output: tests/peers/README.md."""

import asyncio
import json
import os
import sys
import time

import redis.asyncio as redis
from redis.asyncio.lock import Lock

TTL_S = 10.0
# Polling interval in seconds; the default of redis-py.
ASK_AGAIN_S = 0.1
MOST = 20_000


def some(all_of_them: list[int]) -> list[int]:
    """Return at most MOST elements, evenly chosen."""
    count = len(all_of_them)
    return all_of_them if count <= MOST else [all_of_them[at * count // MOST] for at in range(MOST)]


async def told(begin: float) -> None:
    """Print `begin` at the end of the warm-up."""
    await asyncio.sleep(max(0.0, begin - time.monotonic()))
    print("begin", flush=True)


async def pairs(client: redis.Redis, callers: int, begin: float, end: float) -> dict:
    """Let each caller acquire and release its own lock repeatedly."""
    latencies: list[int] = []

    async def caller(at: int) -> None:
        lock = Lock(client, f"pairs-{at}", timeout=TTL_S, sleep=ASK_AGAIN_S, thread_local=False)
        while (sent := time.monotonic()) < end:
            await lock.acquire()
            await lock.release()
            if sent >= begin:
                latencies.append(int((time.monotonic() - sent) * 1e6))

    await asyncio.gather(told(begin), *(caller(at) for at in range(callers)))
    return {"done": len(latencies), "latencies_us": some(latencies), "counts": [], "longest_wait_us": 0}


async def hot(client: redis.Redis, callers: int, begin: float, end: float) -> dict:
    """Let all callers acquire and release one lock repeatedly."""
    latencies: list[int] = []
    counts = [0] * callers
    last, released, longest = -1, 0.0, 0.0

    async def caller(at: int) -> None:
        nonlocal last, released, longest
        lock = Lock(client, f"hot-{os.getpid()}", timeout=TTL_S, sleep=ASK_AGAIN_S, thread_local=False)
        while True:
            sent = time.monotonic()
            await lock.acquire()
            granted = time.monotonic()
            if begin <= granted < end:
                if last not in (at, -1):
                    latencies.append(int((granted - released) * 1e6))
                counts[at] += 1
                longest = max(longest, granted - sent)
            last, released = at, time.monotonic()
            await lock.release()

    # Callers that still wait at the end are abandoned.
    running = [asyncio.create_task(caller(at)) for at in range(callers)]
    await told(begin)
    await asyncio.sleep(end - time.monotonic())
    for one in running:
        if one.done():
            one.result()
    return {
        "done": len(latencies),
        "latencies_us": some(latencies),
        "counts": counts,
        "longest_wait_us": int(longest * 1e6),
    }


async def main() -> None:
    """Run a scenario."""
    system, endpoint, scenario, callers, warm_up_ms, measured_ms = sys.argv[1:]
    assert system == "redis-py", system
    host, port = endpoint.rsplit(":", 1)
    pool = redis.BlockingConnectionPool(host=host, port=int(port), max_connections=256, timeout=None)
    client = redis.Redis(connection_pool=pool)
    begin = time.monotonic() + int(warm_up_ms) / 1e3
    end = begin + int(measured_ms) / 1e3
    if scenario in ("pairs", "hot"):
        run = pairs if scenario == "pairs" else hot
        print(json.dumps(await run(client, int(callers), begin, end)), flush=True)
        os._exit(0)
    lock = Lock(client, "crash", timeout=TTL_S, sleep=ASK_AGAIN_S, thread_local=False)
    if scenario == "wait":
        print("waiting", flush=True)
    await lock.acquire()
    print("held" if scenario == "hold" else "granted", flush=True)
    if scenario == "hold":
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
