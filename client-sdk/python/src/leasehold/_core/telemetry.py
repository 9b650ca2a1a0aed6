"""What the client tells of itself by OpenTelemetry, if the program has it: the caller's trace context to the broker,
and how long calls waited and locks were held to the program's meter.
"""

from __future__ import annotations

import importlib
from typing import Any

from leasehold.errors import Error, Held, WaitTimeout


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_PROPAGATE = _module("opentelemetry.propagate")
_METRICS = _module("opentelemetry.metrics")
_histograms: dict[str, Any] = {}


def traceparent() -> str:
    """As in the W3C header of this name, by the program's global propagator; empty: none. Each call has its own, since
    one stream carries many.
    """
    if _PROPAGATE is None:
        return ""
    headers: dict[str, str] = {}
    _PROPAGATE.inject(headers)
    return headers.get("traceparent", "")


def waited(time: float, result: object) -> None:
    """A call has ended after this time."""
    outcome = "granted"
    if isinstance(result, Held):
        outcome = "held"
    elif isinstance(result, WaitTimeout):
        outcome = "wait_timeout"
    elif isinstance(result, Error):
        outcome = "failed"
    _record("leasehold.client.wait.duration", "From a call to its answer, by outcome.", time, outcome)


def held(time: float, *, is_lost: bool) -> None:
    """A lease has ended after this time. Not for finalizers: the meter has locks."""
    outcome = "lost" if is_lost else "released"
    _record("leasehold.client.hold.duration", "From a grant to the end of its lease, by outcome.", time, outcome)


def _record(name: str, description: str, time: float, outcome: str) -> None:
    if _METRICS is None:
        return
    if name not in _histograms:
        meter = _METRICS.get_meter("leasehold")
        _histograms[name] = meter.create_histogram(name, unit="s", description=description)
    _histograms[name].record(time, {"outcome": outcome})
