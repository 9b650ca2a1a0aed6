"""What is told to a program that has OpenTelemetry: spans, the trace context of calls, and how long things took."""

from __future__ import annotations

from typing import Any

import pytest
from flavours import FakeSite, Flavour
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from leasehold import errors
from leasehold._core import telemetry

# A process has one of each.
SPANS = InMemorySpanExporter()
TRACES = TracerProvider()
TRACES.add_span_processor(SimpleSpanProcessor(SPANS))
trace.set_tracer_provider(TRACES)
METER = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([METER]))


@pytest.fixture
def spans() -> InMemorySpanExporter:
    """What ends from now on."""
    SPANS.clear()
    return SPANS


def events(span: ReadableSpan) -> list[tuple[str, dict[str, Any]]]:
    """Names and attributes."""
    return [(one.name, dict(one.attributes or {})) for one in span.events]


async def test_a_call_is_a_span_with_what_becomes_of_it(flavour: Flavour, spans: InMemorySpanExporter) -> None:
    site = FakeSite(flavour)
    one, other = site.client("one"), site.client("other")
    lease = await one.acquire("a")
    assert await other.try_lock("a") is None
    with pytest.raises(errors.WaitTimeout):
        await other.acquire("a", wait=0.01)
    granted, held, late = spans.get_finished_spans()
    assert {span.name for span in (granted, held, late)} == {"lock.acquire"}
    said = {"locks": ("default/a",), "wait": pytest.approx(30.0, abs=1.0), "outcome": "granted"}
    assert dict(granted.attributes or {}) == said
    assert events(granted) == [("granted", {"lease_id": lease.lease_id})]
    assert (held.attributes or {})["outcome"] == "held"
    assert (late.attributes or {})["outcome"] == "wait_timeout"
    (name, place), (end, why) = events(late)
    assert (name, place) == ("queued", {"position": 1, "queue_length": 1})
    assert end == "not granted" and "one" in why["error"]
    # That somebody else has a lock is no error.
    assert all(span.status.is_unset for span in (granted, held, late))
    await lease.release()


async def test_a_call_that_is_not_answered_ends_its_span(flavour: Flavour, spans: InMemorySpanExporter) -> None:
    site = FakeSite(flavour)
    lease = await site.client("one").acquire("a")

    def stop(_: object) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError):
        await site.client("other").acquire("a", on_queue=stop)
    _, left = spans.get_finished_spans()
    assert [name for name, _ in events(left)] == ["queued"] and "outcome" not in (left.attributes or {})
    assert trace.get_current_span() is trace.INVALID_SPAN
    await lease.release()


async def test_a_call_carries_its_span_in_the_trace_of_its_caller(
    flavour: Flavour, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeSite(flavour).client("one")
    backend, sent = client.inner._backend, []
    acquire = backend.acquire

    def seen(ask: Any) -> None:
        sent.append(ask.call.traceparent)
        acquire(ask)

    monkeypatch.setattr(backend, "acquire", seen)
    assert telemetry.traceparent() == ""
    with TRACES.get_tracer("test").start_as_current_span("a job") as job:
        lease = await client.acquire("a")
    await lease.release()
    span, _ = spans.get_finished_spans()
    within, caller = span.get_span_context(), job.get_span_context()
    assert within is not None and span.parent is not None
    assert (span.parent.span_id, within.trace_id) == (caller.span_id, caller.trace_id)
    assert sent == [f"00-{caller.trace_id:032x}-{within.span_id:016x}-{within.trace_flags:02x}"]


def counted() -> dict[tuple[str, str], int]:
    """How often each outcome was recorded so far."""
    data, found = METER.get_metrics_data(), {}
    for resource in data.resource_metrics if data is not None else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    assert scope.scope.name == "leasehold" and metric.unit == "s"
                    count: Any = point
                    assert 0 <= count.sum < 60 * count.count
                    found[metric.name.split(".")[2], str((point.attributes or {})["outcome"])] = count.count
    return found


async def test_times_are_told_to_the_meter_of_the_program(flavour: Flavour) -> None:
    before = counted()
    site = FakeSite(flavour)
    client = site.client("one")
    lease = await client.acquire("a")
    assert await client.try_lock("a") is None
    with pytest.raises(errors.WaitTimeout):
        await client.acquire("a", wait=0.01)
    site.broker.refuse("b", errors.StoreFull())
    with pytest.raises(errors.StoreFull):
        await client.acquire("b")
    await lease.release()
    lost = await client.acquire("a")
    site.broker.lose("a")
    with pytest.raises(errors.LeaseLost):
        await lost.release()
    told = {key: count - before.get(key, 0) for key, count in counted().items()}
    assert told == {
        ("wait", "granted"): 2,
        ("wait", "held"): 1,
        ("wait", "wait_timeout"): 1,
        ("wait", "failed"): 1,
        ("hold", "released"): 1,
        ("hold", "lost"): 1,
    }
