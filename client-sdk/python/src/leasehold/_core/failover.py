"""Failover to another broker: after the stream broke, on request of the broker, or without responses.

A working stream is replaced only after another one was opened.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Callable

from leasehold._core import clock
from leasehold._core.endpoint import OPEN_TIMEOUT
from leasehold._core.stream_connection import StreamConnection, StreamListener
from leasehold.errors import ConnectError, CredentialRefused, InvalidCredential, Unreachable

if TYPE_CHECKING:
    from leasehold._core.session import Session

log = logging.getLogger("leasehold")

#: Upper bound of a random delay in seconds, so that clients of a failed broker do not reconnect all at once.
_JITTER_MAX = 0.05
#: Time in seconds after which a stream counts as successful, so that its end resets the number of failures.
_STABLE_AFTER = 1.0
_BACKOFF_MIN = 0.1
_BACKOFF_MAX = 1.0


def jittered(delay: float) -> float:
    """Returns a random time between half of ``delay`` and ``delay``."""
    return delay * random.uniform(0.5, 1.0)


class Failover:
    """The state of the failover of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # Index of the endpoint of the current stream, or of the endpoint that was tried last.
        self._endpoint_index = -1
        self._connect_at: float | None = None
        self._connecting: StreamConnection | None = None
        # Number of consecutive failures to open a stream or to keep it open.
        self._failures = 0
        # Number of consecutive endpoints that rejected the credential.
        self._credential_rejections = 0
        self._opened_at = clock.now()
        self._last_error = "not connected yet"
        # Callbacks that wait for a stream, each with the failures since its registration.
        self._connect_callbacks: list[tuple[Callable[[ConnectError | None], None], list[str]]] = []
        self._is_stopped = False
        post = session.runtime.worker.post
        self._listener = StreamListener(
            on_open=lambda connection: post(self._on_open, connection),
            on_open_failed=lambda connection, reason, is_unauthenticated: post(
                self._on_open_failed, connection, reason, is_unauthenticated
            ),
            on_message=lambda connection, response: post(session.on_message, connection, response),
            on_disconnect=lambda connection: post(session.on_disconnect, connection),
        )

    def is_idle(self) -> bool:
        """Returns true if no failover is planned."""
        return self._connect_at is None

    def unavailable_reason(self) -> str:
        """Returns the reason for which there is no stream."""
        return f"no broker can be reached: {self._last_error}"

    def notify_when_connected(self, callback: Callable[[ConnectError | None], None]) -> None:
        """Calls the callback with None once there is a stream, or with an error once every endpoint was tried."""
        if self._session.connection is not None:
            callback(None)
        else:
            self._connect_callbacks.append((callback, []))

    def start_failover(self, delay: float) -> None:
        """Moves to another broker after ``delay`` seconds."""
        now = clock.now()
        if self.is_idle():
            self._reset_failures_if_stable(now)
        connect_at = now + delay
        self._connect_at = connect_at if self._connect_at is None else min(self._connect_at, connect_at)
        self._poll_connect(now)

    def on_disconnect(self) -> None:
        """Starts a failover because the stream has ended."""
        self._last_error = "the lease stream ended"
        self._reset_failures_if_stable(clock.now())
        self._failures += 1
        self.start_failover(max(jittered(_JITTER_MAX), self._backoff()))

    def on_tick(self, now: float) -> None:
        """Handles the time limit of opening a stream, and connects when the delay of a failover has passed."""
        connecting = self._connecting
        if connecting is not None and now >= connecting.started_at + OPEN_TIMEOUT:
            connecting.cancel()
            self._on_open_failed(connecting, f"{connecting.endpoint.name}: no answer within {OPEN_TIMEOUT:g} s", False)
        self._poll_connect(now)

    def stop(self) -> None:
        """Cancels the failover and fails the callbacks that wait for a stream."""
        self._is_stopped, self._connect_at = True, None
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        self._notify_connect_callbacks(Unreachable("no broker answers: the client is shut down"))

    def _reset_failures_if_stable(self, now: float) -> None:
        # Failures before the current stream no longer count if that stream was successful.
        if now > self._opened_at + _STABLE_AFTER:
            self._failures = 0

    def _poll_connect(self, now: float) -> None:
        if self._is_stopped or self._connecting is not None or self._connect_at is None or now < self._connect_at:
            return
        self._endpoint_index += 1
        try:
            self._connecting = StreamConnection(self._session.endpoints, self._endpoint_index, self._listener)
        except InvalidCredential as error:
            self._on_connect_failed(str(error), False)

    def _on_open(self, connection: StreamConnection) -> None:
        if connection is not self._connecting:
            return connection.cancel()
        self._connecting, self._connect_at = None, None
        self._credential_rejections = 0
        self._opened_at = clock.now()
        self._session.switch_connection(connection)
        self._notify_connect_callbacks(None)

    def _on_open_failed(self, connection: StreamConnection, reason: str, is_unauthenticated: bool) -> None:
        if connection is self._connecting:
            self._connecting = None
            self._on_connect_failed(reason, is_unauthenticated)

    def _on_connect_failed(self, reason: str, is_unauthenticated: bool) -> None:
        if is_unauthenticated:
            log.warning("a broker rejected the credential: %s", reason)
            self._credential_rejections += 1
        else:
            log.warning("connecting to a broker failed: %s", reason)
            self._credential_rejections = 0
        self._failures += 1
        self._last_error = reason
        self._connect_at = clock.now() + self._backoff()
        count = len(self._session.endpoints.all)
        if self._credential_rejections >= count and self._session.connection is None:
            self._session.pending_acquires.fail_all_unauthenticated(self.unavailable_reason())
        callbacks, self._connect_callbacks = self._connect_callbacks, []
        for callback, reasons in callbacks:
            reasons.append(reason)
            if len(reasons) < count:
                self._connect_callbacks.append((callback, reasons))
            elif self._credential_rejections >= count:
                callback(CredentialRefused(f"the credential is missing or not accepted: {'; '.join(reasons)}"))
            else:
                callback(Unreachable(f"no broker answers: {'; '.join(reasons)}"))

    def _notify_connect_callbacks(self, error: ConnectError | None) -> None:
        callbacks, self._connect_callbacks = self._connect_callbacks, []
        for callback, _ in callbacks:
            callback(error)

    def _backoff(self) -> float:
        # In the first round each endpoint is tried at once, in later rounds after an exponential backoff.
        rounds = self._failures // len(self._session.endpoints.all)
        if rounds == 0:
            return 0.0
        return jittered(min(_BACKOFF_MIN * 2.0 ** min(rounds - 1, 16), _BACKOFF_MAX))
