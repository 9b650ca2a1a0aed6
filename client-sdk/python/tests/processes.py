"""Real brokers and a real Redis, as processes that the test ends itself."""

from __future__ import annotations

import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
_START_LIMIT = 20.0
#: An empty store of another kind may have lost leases, so the broker would grant nothing at first. A broker that does
#: not wait for its store ends if the store does not answer in time, as it may on a busy machine.
_PATIENT = ("--trust-empty-store", "--wait-for-store")
_API = re.compile(r"^listening on (\S+)")
_REDIS_READY = "Ready to accept connections"


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def server_binary() -> str:
    """The broker under test."""
    built = _ROOT / "target" / "debug" / "leasehold-server"
    path = os.environ.get("LEASEHOLD_SERVER", str(built))
    assert Path(path).is_file(), f"{path} is missing: cargo build -p leasehold-server, or set LEASEHOLD_SERVER"
    return path


class Process:
    """One process, whose lines of output can be awaited."""

    def __init__(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        # It ignores no signal, though whoever runs the tests may: nohup, or a shell in the background.
        command = ["env", "--default-signal", *command]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._process.stdout.close()
        self._lines.put(None)

    def line(self, pattern: str | re.Pattern[str]) -> re.Match[str]:
        """Waits for a line with the pattern."""
        until = time.monotonic() + _START_LIMIT
        while True:
            line = self._lines.get(timeout=max(0.01, until - time.monotonic()))
            assert line is not None, f"it ended with {self._process.wait()}"
            found = re.search(pattern, line)
            if found is not None:
                return found

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self._process.send_signal(number)

    def pause(self) -> None:
        """Stops it, and waits until it stands still."""
        self.signal(signal.SIGSTOP)
        until = time.monotonic() + _START_LIMIT
        while self.state() != "T":
            assert time.monotonic() < until, "it does not stop"

    def resume(self) -> None:
        """Lets it go on."""
        self.signal(signal.SIGCONT)

    def state(self) -> str:
        """Its state, as the kernel tells it."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0]

    def ended(self, timeout: float = _START_LIMIT) -> int:
        """Waits for its end; its exit code."""
        code = self._process.wait(timeout)
        self._reader.join()
        return code

    def kill(self) -> None:
        """Kills it, and waits for its end."""
        self._process.kill()
        self._process.wait()
        self._reader.join()


class Broker:
    """One broker on a store; on the same port when it is started again."""

    def __init__(self, store: str = "memory") -> None:
        self._store = store
        self.port = free_port()
        self.process = self._start()

    def _start(self) -> Process:
        how = ["dev"] if self._store == "memory" else ["serve", "--store", self._store, *_PATIENT]
        command = [server_binary(), *how, "--listen", self.addr, "--admin-listen", "127.0.0.1:0", "--log", "off"]
        process = Process(command)
        process.line(_API)
        return process

    @property
    def addr(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The same as an endpoint."""
        return f"http://{self.addr}"

    def kill(self) -> None:
        """Kills it."""
        self.process.kill()

    def terminate(self) -> None:
        """Asks it to stop."""
        self.process.signal(signal.SIGTERM)

    def restart(self) -> None:
        """Starts it again after its end."""
        self.process.kill()
        self.process = self._start()


class Redis:
    """One redis-server without persistence, on a port and in a folder of its own."""

    def __init__(self) -> None:
        self.port = free_port()
        self._dir = tempfile.mkdtemp(prefix="leasehold-redis-")
        command = [os.environ.get("STORE_SERVER", "redis-server"), "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--save", "", "--dir", self._dir]
        self.process = Process(command)
        self.process.line(_REDIS_READY)

    @property
    def url(self) -> str:
        """As a broker's store."""
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self, *words: str) -> str:
        """Runs a command by hand; the first line of the answer."""
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
            parts = [f"*{len(words)}\r\n"] + [f"${len(word)}\r\n{word}\r\n" for word in words]
            connection.sendall("".join(parts).encode())
            return connection.recv(4096).decode().splitlines()[0]

    def kill(self) -> None:
        """Kills it, and removes its folder."""
        self.process.kill()
        shutil.rmtree(self._dir, ignore_errors=True)
