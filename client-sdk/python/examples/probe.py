"""Plays the scenarios of the suite with the Python client: one JSON command a line in, one JSON line out for each
answer and each event. The protocol is in tests/suite/README.md.

It plays by the interface for asyncio, so a command may be cancelled; the one for threads has the same core.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

LOG = os.environ.get("LEASEHOLD_LOG")
if LOG == "trace":
    # gRPC reads them when it is imported. Its tracer of this name is a dump of the wire, with all that is secret.
    os.environ.update(GRPC_VERBOSITY="debug", GRPC_TRACE="all,-api")

import leasehold  # noqa: E402
from leasehold import TLS, Target, aio  # noqa: E402

Json = dict[str, Any]
TIMES = ("ttl", "wait", "max_hold", "lock_delay", "disconnect_grace")


class Lease:
    """A lease under its name."""

    def __init__(self, lease: aio.Lease, targets: list[Target]) -> None:
        self.lease = lease
        self._targets = targets

    def state(self) -> Json:
        """As it is now."""
        is_valid = self.lease.is_valid()
        return {
            "lease_id": self.lease.lease_id,
            "tokens": [self.lease.fencing_token_of(one) for one in self._targets],
            "valid": is_valid,
            "remaining_ms": self.lease.remaining() * 1e3,
            "lost_reason": reason(self.lease.lost_reason),
        }


class Probe:
    """What the commands speak of."""

    def __init__(self, client: aio.Client) -> None:
        self._client = client
        self._leases: dict[str, Lease] = {}
        # The acquires under way, and all tasks, which the event loop does not keep.
        self._open: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def play(self) -> None:
        """Does what it is told until its stdin ends."""
        lines = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while line := await lines.readline():
            command = json.loads(line)
            if command["do"] == "block":
                # The thread of the program's own code.
                time.sleep(command["ms"] / 1e3)
                answer(command, now_ms(), ok={})
            elif command["do"] == "exit":
                # Releases and hooks of exit are left out.
                os._exit(0)
            else:
                self._begin(command)

    def _begin(self, command: Json) -> None:
        task = asyncio.create_task(self._obey(command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if command["do"] in ("acquire", "try_acquire"):
            self._open[command["id"]] = task

    async def _obey(self, command: Json) -> None:
        before = now_ms()
        try:
            ok = await getattr(self, f"_{command['do']}")(command)
        except leasehold.Error as error:
            answer(command, now_ms(), error=failure(error))
        except asyncio.CancelledError:
            answer(command, now_ms(), error={"class": "Cancelled", "message": "cancelled"})
        except Exception:
            fault(traceback.format_exc())
        else:
            answer(command, before if command["do"] == "state" else now_ms(), ok=ok)
        finally:
            self._open.pop(command["id"], None)

    async def _version(self, _: Json) -> Json:
        return {"language": "python", "version": leasehold.__version__}

    async def _acquire(self, command: Json) -> Json:
        return self._keep(command, await self._lock(command).acquire())

    async def _try_acquire(self, command: Json) -> Json | None:
        lease = await self._lock(command).try_acquire()
        return None if lease is None else self._keep(command, lease)

    async def _cancel(self, command: Json) -> Json:
        # It may have ended by now.
        task = self._open.get(command["call"])
        if task is not None:
            task.cancel()
        return {}

    async def _release(self, command: Json) -> Json:
        await self._leases[command["lease"]].lease.release()
        return {}

    async def _state(self, command: Json) -> Json:
        return self._leases[command["lease"]].state()

    async def _observe(self, command: Json) -> Json:
        leader = await self._client.elect(command["lock"]).observe().next()
        return {"holder": None if leader is None else holder(leader)}

    async def _shutdown(self, _: Json) -> Json:
        await self._client.shutdown()
        return {}

    def _lock(self, command: Json) -> aio.Lock:
        options: Json = {name: command[f"{name}_ms"] / 1e3 for name in TIMES if command.get(f"{name}_ms") is not None}
        if command.get("reason") is not None:
            options["reason"] = command["reason"]
        if command.get("under") is not None:
            options["under"] = self._leases[command["under"]].lease

        def queued(place: leasehold.Place) -> None:
            at_ms = now_ms()
            say(
                {
                    "event": "queued",
                    "at_ms": at_ms,
                    "call": command["id"],
                    "position": place.position,
                    "queue_length": place.queue_length,
                    "holders": [holder(one) for one in place.holders],
                }
            )

        def lost(lease: aio.Lease) -> None:
            at_ms = now_ms()
            say({"event": "lost", "at_ms": at_ms, "lease": command["as"], "reason": reason(lease.lost.reason)})

        targets = [target(one) for one in command["targets"]]
        if len(targets) == 1:
            return self._client.lock(targets[0], on_queue=queued, on_lost=lost, **options)
        return self._client.lock_all(targets, on_queue=queued, on_lost=lost, **options)

    def _keep(self, command: Json, lease: aio.Lease) -> Json:
        kept = Lease(lease, [target(one) for one in command["targets"]])
        self._leases[command["as"]] = kept
        return kept.state()


async def main() -> int:
    """Connects and plays; the exit code."""
    # Nothing that goes wrong in a callback may look like an answer that is late.
    asyncio.get_running_loop().set_exception_handler(lambda _, context: fault(context))
    try:
        client = await connect()
    except leasehold.ConnectError as error:
        say({"event": "failed", "at_ms": now_ms(), "error": failure(error)})
        return 1
    say({"event": "ready", "at_ms": now_ms()})
    await Probe(client).play()
    # No shutdown: what is held is given back by the client's hook at the exit of the process.
    return 0


async def connect() -> aio.Client:
    """A client as the environment has it."""

    def file(name: str) -> bytes | None:
        path = os.environ.get(name)
        return None if path is None else Path(path).read_bytes()

    ca = file("LEASEHOLD_TLS_CA")
    tls = None if ca is None else TLS(ca, file("LEASEHOLD_TLS_CERT"), file("LEASEHOLD_TLS_KEY"))
    client = aio.Client(
        os.environ.get("LEASEHOLD_ENDPOINTS", ""),
        owner=os.environ.get("LEASEHOLD_OWNER"),
        bearer_token=os.environ.get("LEASEHOLD_BEARER_TOKEN"),
        bearer_token_file=os.environ.get("LEASEHOLD_BEARER_TOKEN_FILE"),
        allow_insecure_token=bool(os.environ.get("LEASEHOLD_ALLOW_INSECURE_TOKEN")),
        tls=tls,
    )
    return await client.connect()


def target(one: Json) -> Target:
    """One lock, as a command names it."""
    name, namespace = one["name"], one.get("namespace") or ""
    if one.get("mode") == "semaphore":
        return Target(name, namespace, permits=one["permits"], limit=one.get("limit"))
    return Target(name, namespace, shared=one.get("mode") == "shared")


def failure(error: leasehold.Error) -> Json:
    """An error in the common spelling, which is that of the classes."""
    after = error.retry_after
    return {
        "class": type(error).__name__,
        "message": str(error),
        "holders": [holder(one) for one in error.holders],
        "retry_after_ms": None if after is None else after * 1e3,
        "reason": reason(error.reason) if isinstance(error, leasehold.LeaseLost) else None,
    }


def reason(why: leasehold.LostReason | None) -> str | None:
    """STORE_LOST is StoreLost."""
    return None if why is None else why.name.title().replace("_", "")


def holder(one: leasehold.Holder) -> Json:
    """Somebody who holds a lock."""
    return {
        "lease_id": one.lease_id,
        "owner": one.owner,
        "reason": one.reason,
        "token": one.fencing_token,
        "remaining_ms": one.remaining * 1e3,
    }


def answer(command: Json, at_ms: float, **outcome: Any) -> None:
    """To a command."""
    say({"id": command["id"], "at_ms": at_ms, **outcome})


def say(line: Json) -> None:
    """To the runner."""
    print(json.dumps(line), flush=True)


def now_ms() -> float:
    """On the clock that all processes of a machine share."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) * 1e3


def fault(what: object) -> None:
    """Ends the program: this must not happen."""
    print(what, file=sys.stderr, flush=True)
    os._exit(101)


class Faults(logging.Handler):
    """The client logs its own faults as errors, and goes on."""

    def emit(self, record: logging.LogRecord) -> None:
        """One of them."""
        fault(self.format(record))


if __name__ == "__main__":
    threading.excepthook = fault
    sys.unraisablehook = fault
    logging.getLogger("leasehold").addHandler(Faults(logging.ERROR))
    if LOG is not None:
        logging.basicConfig(level=1, stream=sys.stderr)
    sys.exit(asyncio.run(main()))
