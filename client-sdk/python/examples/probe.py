"""Runs the scenarios of the common suite with the Python client.

The probe reads one JSON command a line, and writes one JSON line for each response and each event. The protocol is
described in tests/suite/README.md.

The probe uses the interface for asyncio, whose calls can be cancelled. The interface for threads has the same core.
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
from dataclasses import asdict
from pathlib import Path
from typing import Any

LOG = os.environ.get("LEASEHOLD_LOG")
if LOG == "trace":
    # gRPC reads the variables when it is imported. The tracer "api" is excluded, because it prints all data on
    # the wire, including secrets.
    os.environ.update(GRPC_VERBOSITY="debug", GRPC_TRACE="all,-api")

import leasehold  # noqa: E402
from leasehold import TLS, Target, aio  # noqa: E402

Json = dict[str, Any]
DURATIONS = ("ttl", "wait", "max_hold", "lock_delay", "disconnect_grace", "at_least")


class Lease:
    """A lease and the targets that it was acquired for."""

    def __init__(self, lease: aio.Lease, targets: list[Target]) -> None:
        self.lease = lease
        self._targets = targets

    def state(self) -> Json:
        """Returns the current state of the lease."""
        is_valid = self.lease.is_valid()
        return {
            "lease_id": self.lease.lease_id,
            "tokens": [self.lease.fencing_token_of(lock_target) for lock_target in self._targets],
            "valid": is_valid,
            "remaining_ms": self.lease.remaining() * 1e3,
            "lost_reason": reason(self.lease.lost_reason),
        }


class Probe:
    """The client and the leases that the commands refer to."""

    def __init__(self, client: aio.Client) -> None:
        self._client = client
        self._leases: dict[str, Lease] = {}
        # The pending acquires, and references to all tasks, because the event loop keeps weak references only.
        self._pending: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Runs the commands from stdin until its end."""
        lines = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while line := await lines.readline():
            command = json.loads(line)
            if command["do"] == "block":
                # Blocks the thread of the event loop, as code of a program may.
                time.sleep(command["ms"] / 1e3)
                respond(command, now_ms(), ok={})
            elif command["do"] == "exit":
                # Exits without releases and exit hooks.
                os._exit(0)
            else:
                self._start_task(command)

    def _start_task(self, command: Json) -> None:
        task = asyncio.create_task(self._execute(command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if command["do"] in ("acquire", "try_acquire"):
            self._pending[command["id"]] = task

    async def _execute(self, command: Json) -> None:
        before = now_ms()
        try:
            ok = await getattr(self, f"_{command['do']}")(command)
        except leasehold.Error as error:
            respond(command, now_ms(), error=failure(error))
        except asyncio.CancelledError:
            respond(command, now_ms(), error={"class": "Cancelled", "message": "cancelled"})
        except Exception:
            abort(traceback.format_exc())
        else:
            respond(command, before if command["do"] == "state" else now_ms(), ok=ok)
        finally:
            self._pending.pop(command["id"], None)

    async def _version(self, _: Json) -> Json:
        return {"language": "python", "version": leasehold.__version__}

    async def _acquire(self, command: Json) -> Json:
        return self._store_lease(command, await self._lock(command).acquire())

    async def _try_acquire(self, command: Json) -> Json | None:
        lease = await self._lock(command).try_acquire()
        return None if lease is None else self._store_lease(command, lease)

    async def _cancel(self, command: Json) -> Json:
        # The call may have ended before.
        task = self._pending.get(command["call"])
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
        state = await self._client.get(command["lock"])
        usage = None if state is None else state.permit_usage
        return {
            "holder": None if leader is None else holder(leader),
            "closure": None if state is None else closure(state.closure),
            "permit_usage": None if usage is None else asdict(usage),
        }

    async def _set_limit(self, command: Json) -> Json:
        return {"previous_limit": await self._client.set_limit(command["lock"], command.get("limit") or None)}

    async def _shutdown(self, _: Json) -> Json:
        await self._client.shutdown()
        return {}

    def _lock(self, command: Json) -> aio.Lock:
        options: Json = {
            name: command[f"{name}_ms"] / 1e3 for name in DURATIONS if command.get(f"{name}_ms") is not None
        }
        if command.get("reason") is not None:
            options["reason"] = command["reason"]
        if command.get("under") is not None:
            options["under"] = self._leases[command["under"]].lease

        def queued(position: leasehold.QueuePosition) -> None:
            at_ms = now_ms()
            emit(
                {
                    "event": "queued",
                    "at_ms": at_ms,
                    "call": command["id"],
                    "position": position.position,
                    "queue_length": position.queue_length,
                    "holders": [holder(item) for item in position.holders],
                    "closure": closure(position.closure),
                }
            )

        def lost(lease: aio.Lease) -> None:
            at_ms = now_ms()
            emit({"event": "lost", "at_ms": at_ms, "lease": command["as"], "reason": reason(lease.lost.reason)})

        targets = [target(item) for item in command["targets"]]
        if len(targets) == 1:
            return self._client.lock(targets[0], on_queue=queued, on_lost=lost, **options)
        return self._client.lock_all(targets, on_queue=queued, on_lost=lost, **options)

    def _store_lease(self, command: Json, lease: aio.Lease) -> Json:
        stored = Lease(lease, [target(item) for item in command["targets"]])
        self._leases[command["as"]] = stored
        return stored.state()


async def main() -> int:
    """Connects, runs the commands, and returns the exit code."""
    # An error in a callback ends the process, so that the runner does not take it for a late response.
    asyncio.get_running_loop().set_exception_handler(lambda _, context: abort(context))
    try:
        client = await connect()
    except leasehold.ConnectError as error:
        emit({"event": "failed", "at_ms": now_ms(), "error": failure(error)})
        return 1
    emit({"event": "ready", "at_ms": now_ms()})
    await Probe(client).run()
    # Without a shutdown: the client's exit hook releases all leases.
    return 0


async def connect() -> aio.Client:
    """Creates and connects a client with the settings in the environment."""

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


def target(fields: Json) -> Target:
    """Converts a target of a command."""
    name, namespace = fields["name"], fields.get("namespace") or ""
    if fields.get("mode") == "semaphore":
        return Target(name, namespace, permits=fields["permits"], limit=fields.get("limit"))
    return Target(name, namespace, shared=fields.get("mode") == "shared")


def failure(error: leasehold.Error) -> Json:
    """Converts an error. Its name in the protocol is that of the class."""
    retry_after = error.retry_after
    return {
        "class": type(error).__name__,
        "message": str(error),
        "holders": [holder(item) for item in error.holders],
        "retry_after_ms": None if retry_after is None else retry_after * 1e3,
        "reason": reason(error.reason) if isinstance(error, leasehold.LeaseLost) else None,
    }


def reason(lost_reason: leasehold.LostReason | None) -> str | None:
    """Converts a reason to its name in the protocol, such as STORE_LOST to StoreLost."""
    return None if lost_reason is None else lost_reason.name.title().replace("_", "")


def holder(message: leasehold.Holder) -> Json:
    """Converts a holder."""
    return {
        "lease_id": message.lease_id,
        "owner": message.owner,
        "reason": message.reason,
        "token": message.fencing_token,
        "remaining_ms": message.remaining * 1e3,
    }


def closure(message: leasehold.Closure | None) -> Json | None:
    """Converts a closure, or None if the lock is not closed."""
    if message is None:
        return None
    return {
        "cause": message.cause.value,
        "owner": message.owner,
        "reason": message.reason,
        "remaining_ms": message.remaining * 1e3,
    }


def respond(command: Json, at_ms: float, **outcome: Any) -> None:
    """Writes the response to a command."""
    emit({"id": command["id"], "at_ms": at_ms, **outcome})


def emit(line: Json) -> None:
    """Writes a line to the runner."""
    print(json.dumps(line), flush=True)


def now_ms() -> float:
    """Returns the time of the clock that all processes of the machine share, in milliseconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) * 1e3


def abort(error: object) -> None:
    """Reports an unexpected error and ends the process."""
    print(error, file=sys.stderr, flush=True)
    os._exit(101)


class ErrorLogHandler(logging.Handler):
    """A log handler that ends the process when the client logs an internal error, after which the client continues."""

    def emit(self, record: logging.LogRecord) -> None:
        """Reports the record."""
        abort(self.format(record))


if __name__ == "__main__":
    threading.excepthook = abort
    sys.unraisablehook = abort
    logging.getLogger("leasehold").addHandler(ErrorLogHandler(logging.ERROR))
    if LOG is not None:
        logging.basicConfig(level=1, stream=sys.stderr)
    sys.exit(asyncio.run(main()))
