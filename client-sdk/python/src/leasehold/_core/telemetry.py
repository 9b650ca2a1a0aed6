"""What the client tells of itself by OpenTelemetry, if the program has it: a span for each call that takes locks, the
trace context to the broker, and how long calls waited and locks were held to the program's meter.
"""

from __future__ import annotations

import importlib
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable

from leasehold._core import clock
from leasehold.errors import Error, Held, WaitTimeout

if TYPE_CHECKING:
    from leasehold._core.order import Place


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_PROPAGATE = _module("opentelemetry.propagate")
_METRICS = _module("opentelemetry.metrics")
_TRACE = _module("opentelemetry.trace")
_histograms: dict[str, Any] = {}


class Acquiring:
    """One call that takes locks: the span ``lock.acquire``, which is the current one meanwhile."""

    def __init__(self, locks: list[str], wait: float) -> None:
        self._begun = clock.now()
        self._current: Any = None
        self._span: Any = None
        if _TRACE is not None:
            # That a lock is held is an answer, and no error of the span.
            self._current = _TRACE.get_tracer("leasehold").start_as_current_span(
                "lock.acquire",
                attributes={"locks": locks, "wait": wait},
                record_exception=False,
                set_status_on_exception=False,
            )

    def __enter__(self) -> Acquiring:
        if self._current is not None:
            self._span = self._current.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._current is not None:
            self._current.__exit__(kind, error, trace)

    def hook(self, on_queue: Callable[[Place], object] | None) -> Callable[[Place], object] | None:
        """The caller's hook, and the place in the span."""
        span = self._span
        if span is None:
            return on_queue

        def hook(place: Place) -> None:
            span.add_event("queued", {"position": place.position, "queue_length": place.queue_length})
            if on_queue is not None:
                on_queue(place)

        return hook

    def answered(self, result: object) -> None:
        """The call has its answer: a grip, or an error."""
        outcome = "granted"
        if isinstance(result, Held):
            outcome = "held"
        elif isinstance(result, WaitTimeout):
            outcome = "wait_timeout"
        elif isinstance(result, Error):
            outcome = "failed"
        _record("leasehold.client.wait.duration", "From a call to its answer, by outcome.", self._begun, outcome)
        if self._span is None:
            return
        self._span.set_attribute("outcome", outcome)
        if isinstance(result, Error):
            self._span.add_event("not granted", {"error": str(result)})
        else:
            self._span.add_event("granted", {"lease_id": str(getattr(result, "lease_id", ""))})


def traceparent() -> str:
    """As in the W3C header of this name, by the program's global propagator; empty: none. Each call has its own, since
    one stream carries many.
    """
    if _PROPAGATE is None:
        return ""
    headers: dict[str, str] = {}
    _PROPAGATE.inject(headers)
    return headers.get("traceparent", "")


def held(since: float, *, is_lost: bool) -> None:
    """A lease has ended that began then. Not for finalizers: the meter has locks."""
    outcome = "lost" if is_lost else "released"
    _record("leasehold.client.hold.duration", "From a grant to the end of its lease, by outcome.", since, outcome)


def _record(name: str, description: str, since: float, outcome: str) -> None:
    if _METRICS is None:
        return
    if name not in _histograms:
        meter = _METRICS.get_meter("leasehold")
        _histograms[name] = meter.create_histogram(name, unit="s", description=description)
    _histograms[name].record(clock.now() - since, {"outcome": outcome})
