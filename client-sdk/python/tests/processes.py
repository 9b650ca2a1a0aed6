"""Processes of real brokers and of a real Redis, which the tests end."""

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
_TIMEOUT = 20.0
#: Options of a broker on Redis. An empty store may have lost leases, so without the first option the broker would grant
#: nothing at first. Without the second one the broker exits if the store does not answer in time, which may happen on
#: a busy machine.
_STORE_OPTIONS = ("--trust-empty-store", "--wait-for-store")
_API_READY = re.compile(r"^listening on (\S+)")
_REDIS_READY = "Ready to accept connections"


def free_port() -> int:
    """Returns a port that no process listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def server_binary() -> str:
    """Returns the path of the broker under test."""
    built = _ROOT / "target" / "debug" / "leasehold-server"
    path = os.environ.get("LEASEHOLD_SERVER", str(built))
    assert Path(path).is_file(), f"{path} is missing: cargo build -p leasehold-server, or set LEASEHOLD_SERVER"
    return path


class Process:
    """A process, with functions that wait for lines of its output."""

    def __init__(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        # Resets all signals to their defaults, because the tests may run with ignored signals, as under nohup or in a
        # background job of a shell.
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

    def wait_for_line(self, pattern: str | re.Pattern[str]) -> re.Match[str]:
        """Waits for a line with the pattern."""
        deadline = time.monotonic() + _TIMEOUT
        while True:
            line = self._lines.get(timeout=max(0.01, deadline - time.monotonic()))
            assert line is not None, f"the process ended with {self._process.wait()}"
            match = re.search(pattern, line)
            if match is not None:
                return match

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process."""
        self._process.send_signal(number)

    def pause(self) -> None:
        """Stops the process with SIGSTOP and waits until it is stopped."""
        self.signal(signal.SIGSTOP)
        deadline = time.monotonic() + _TIMEOUT
        while self.state() != "T":
            assert time.monotonic() < deadline, "the process does not stop"

    def resume(self) -> None:
        """Continues the stopped process."""
        self.signal(signal.SIGCONT)

    def state(self) -> str:
        """Returns the state of the process from ``/proc``, such as T for stopped."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0]

    def wait_for_exit(self, timeout: float = _TIMEOUT) -> int:
        """Waits for the end of the process and returns its exit code."""
        code = self._process.wait(timeout)
        self._reader.join()
        return code

    def kill(self) -> None:
        """Kills the process and waits for its end."""
        self._process.kill()
        self._process.wait()
        self._reader.join()


class Broker:
    """A broker on a store. A restarted broker listens on the same port."""

    def __init__(self, store: str = "memory") -> None:
        self._store = store
        self.port = free_port()
        self.process = self._start()

    def _start(self) -> Process:
        arguments = ["dev"] if self._store == "memory" else ["serve", "--store", self._store, *_STORE_OPTIONS]
        command = [server_binary(), *arguments, "--listen", self.addr, "--admin-listen", "127.0.0.1:0", "--log", "off"]
        process = Process(command)
        process.wait_for_line(_API_READY)
        return process

    @property
    def addr(self) -> str:
        """Address that the broker listens on."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Endpoint of the broker."""
        return f"http://{self.addr}"

    def kill(self) -> None:
        """Kills the broker."""
        self.process.kill()

    def terminate(self) -> None:
        """Sends SIGTERM to the broker."""
        self.process.signal(signal.SIGTERM)

    def restart(self) -> None:
        """Kills the broker and starts it again."""
        self.process.kill()
        self.process = self._start()


class Redis:
    """A redis-server without persistence, on a free port and in a temporary folder."""

    def __init__(self) -> None:
        self.port = free_port()
        self._dir = tempfile.mkdtemp(prefix="leasehold-redis-")
        command = [os.environ.get("STORE_SERVER", "redis-server"), "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--save", "", "--dir", self._dir]
        self.process = Process(command)
        self.process.wait_for_line(_REDIS_READY)

    @property
    def url(self) -> str:
        """URL of the store for brokers."""
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self, *words: str) -> str:
        """Sends a command and returns the first line of the response."""
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
            parts = [f"*{len(words)}\r\n"] + [f"${len(word)}\r\n{word}\r\n" for word in words]
            connection.sendall("".join(parts).encode())
            return connection.recv(4096).decode().splitlines()[0]

    def kill(self) -> None:
        """Kills the server and removes its folder."""
        self.process.kill()
        shutil.rmtree(self._dir, ignore_errors=True)
