"""Telemetry of the client, if the program has OpenTelemetry installed.

The client creates a span for each call that acquires locks, sends the trace context to the broker, and records the
durations of waits and holds with the program's meter.
"""

from __future__ import annotations

import importlib
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable

from leasehold._core import clock
from leasehold.errors import Error, Held, WaitTimeout

if TYPE_CHECKING:
    from leasehold._core.command import QueuePosition


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_PROPAGATE = _module("opentelemetry.propagate")
_METRICS = _module("opentelemetry.metrics")
_TRACE = _module("opentelemetry.trace")
_histograms: dict[str, Any] = {}


class AcquireSpan:
    """The span ``lock.acquire`` of one call that acquires locks. It is the current span during the call."""

    def __init__(self, locks: list[str], wait: float) -> None:
        self._started_at = clock.now()
        self._span_context: Any = None
        self._span: Any = None
        if _TRACE is not None:
            # A held lock is a regular result of the call, and no error of the span.
            self._span_context = _TRACE.get_tracer("leasehold").start_as_current_span(
                "lock.acquire",
                attributes={"locks": locks, "wait": wait},
                record_exception=False,
                set_status_on_exception=False,
            )

    def __enter__(self) -> AcquireSpan:
        if self._span_context is not None:
            self._span = self._span_context.__enter__()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._span_context is not None:
            self._span_context.__exit__(error_type, error, traceback)

    def queue_hook(
        self, on_queue: Callable[[QueuePosition], object] | None
    ) -> Callable[[QueuePosition], object] | None:
        """Returns a hook that adds the queue position to the span and calls the caller's hook."""
        span = self._span
        if span is None:
            return on_queue

        def queue_hook(position: QueuePosition) -> None:
            span.add_event("queued", {"position": position.position, "queue_length": position.queue_length})
            if on_queue is not None:
                on_queue(position)

        return queue_hook

    def record_result(self, result: object) -> None:
        """Records the result of the call: a handle or an error."""
        outcome = "granted"
        if isinstance(result, Held):
            outcome = "held"
        elif isinstance(result, WaitTimeout):
            outcome = "wait_timeout"
        elif isinstance(result, Error):
            outcome = "failed"
        _record(
            "leasehold.client.wait.duration", "Time from a call to its result, by outcome.", self._started_at, outcome
        )
        if self._span is None:
            return
        self._span.set_attribute("outcome", outcome)
        if isinstance(result, Error):
            self._span.add_event("not granted", {"error": str(result)})
        else:
            self._span.add_event("granted", {"lease_id": str(getattr(result, "lease_id", ""))})


def traceparent() -> str:
    """Returns the value of the W3C header of this name from the program's global propagator, or an empty string.

    It is sent with each call, because one stream carries many calls.
    """
    if _PROPAGATE is None:
        return ""
    headers: dict[str, str] = {}
    _PROPAGATE.inject(headers)
    return headers.get("traceparent", "")


def record_hold(granted_at: float, *, is_lost: bool) -> None:
    """Records the hold duration of a lease that has ended. Finalizers must not call it: the meter uses locks."""
    outcome = "lost" if is_lost else "released"
    _record(
        "leasehold.client.hold.duration", "Time from a grant to the end of its lease, by outcome.", granted_at, outcome
    )


def _record(name: str, description: str, started_at: float, outcome: str) -> None:
    if _METRICS is None:
        return
    if name not in _histograms:
        meter = _METRICS.get_meter("leasehold")
        _histograms[name] = meter.create_histogram(name, unit="s", description=description)
    _histograms[name].record(clock.now() - started_at, {"outcome": outcome})
