"""Telemetry in programs with OpenTelemetry: spans, the trace context of calls, and durations."""

from __future__ import annotations

from typing import Any

import pytest
from interfaces import FakeBrokerFixture, Interface
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from leasehold import errors
from leasehold._core import telemetry

# OpenTelemetry has one tracer provider and one meter provider in a process.
SPANS = InMemorySpanExporter()
TRACES = TracerProvider()
TRACES.add_span_processor(SimpleSpanProcessor(SPANS))
trace.set_tracer_provider(TRACES)
METER = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([METER]))


@pytest.fixture
def spans() -> InMemorySpanExporter:
    """Returns an exporter that contains only spans that end during the test."""
    SPANS.clear()
    return SPANS


def events(span: ReadableSpan) -> list[tuple[str, dict[str, Any]]]:
    """Returns the names and attributes of a span's events."""
    return [(event.name, dict(event.attributes or {})) for event in span.events]


async def test_a_call_is_a_span_with_its_outcome(interface: Interface, spans: InMemorySpanExporter) -> None:
    broker_fixture = FakeBrokerFixture(interface)
    client, other_client = broker_fixture.client("one"), broker_fixture.client("other")
    lease = await client.acquire("a")
    assert await other_client.try_lock("a") is None
    with pytest.raises(errors.WaitTimeout):
        await other_client.acquire("a", wait=0.01)
    granted_span, held_span, timeout_span = spans.get_finished_spans()
    assert {span.name for span in (granted_span, held_span, timeout_span)} == {"lock.acquire"}
    attributes = {"locks": ("default/a",), "wait": pytest.approx(30.0, abs=1.0), "outcome": "granted"}
    assert dict(granted_span.attributes or {}) == attributes
    assert events(granted_span) == [("granted", {"lease_id": lease.lease_id})]
    assert (held_span.attributes or {})["outcome"] == "held"
    assert (timeout_span.attributes or {})["outcome"] == "wait_timeout"
    (name, position), (last_event, details) = events(timeout_span)
    assert (name, position) == ("queued", {"position": 1, "queue_length": 1})
    assert last_event == "not granted" and "one" in details["error"]
    # A lock that another caller holds is no error of the span.
    assert all(span.status.is_unset for span in (granted_span, held_span, timeout_span))
    await lease.release()


async def test_a_failed_call_ends_its_span(interface: Interface, spans: InMemorySpanExporter) -> None:
    broker_fixture = FakeBrokerFixture(interface)
    lease = await broker_fixture.client("one").acquire("a")

    def stop(_: object) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError):
        await broker_fixture.client("other").acquire("a", on_queue=stop)
    _, failed_span = spans.get_finished_spans()
    assert [name for name, _ in events(failed_span)] == ["queued"] and "outcome" not in (failed_span.attributes or {})
    assert trace.get_current_span() is trace.INVALID_SPAN
    await lease.release()


async def test_a_call_propagates_its_trace_context(
    interface: Interface, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeBrokerFixture(interface).client("one")
    backend, sent = client.inner._backend, []
    acquire = backend.acquire

    def record(command: Any) -> None:
        sent.append(command.params.traceparent)
        acquire(command)

    monkeypatch.setattr(backend, "acquire", record)
    assert telemetry.traceparent() == ""
    with TRACES.get_tracer("test").start_as_current_span("a job") as job:
        lease = await client.acquire("a")
    await lease.release()
    span, _ = spans.get_finished_spans()
    within, caller = span.get_span_context(), job.get_span_context()
    assert within is not None and span.parent is not None
    assert (span.parent.span_id, within.trace_id) == (caller.span_id, caller.trace_id)
    assert sent == [f"00-{caller.trace_id:032x}-{within.span_id:016x}-{within.trace_flags:02x}"]


def recorded_counts() -> dict[tuple[str, str], int]:
    """Returns the number of recorded values for each metric and outcome."""
    data, counts = METER.get_metrics_data(), {}
    for resource in data.resource_metrics if data is not None else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    assert scope.scope.name == "leasehold" and metric.unit == "s"
                    count: Any = point
                    assert 0 <= count.sum < 60 * count.count
                    counts[metric.name.split(".")[2], str((point.attributes or {})["outcome"])] = count.count
    return counts


async def test_durations_are_recorded_with_the_meter_of_the_program(interface: Interface) -> None:
    before = recorded_counts()
    broker_fixture = FakeBrokerFixture(interface)
    client = broker_fixture.client("one")
    lease = await client.acquire("a")
    assert await client.try_lock("a") is None
    with pytest.raises(errors.WaitTimeout):
        await client.acquire("a", wait=0.01)
    broker_fixture.broker.refuse("b", errors.StoreFull())
    with pytest.raises(errors.StoreFull):
        await client.acquire("b")
    await lease.release()
    lost = await client.acquire("a")
    broker_fixture.broker.lose("a")
    with pytest.raises(errors.LeaseLost):
        await lost.release()
    counts = {key: count - before.get(key, 0) for key, count in recorded_counts().items()}
    assert counts == {
        ("wait", "granted"): 2,
        ("wait", "held"): 1,
        ("wait", "wait_timeout"): 1,
        ("wait", "failed"): 1,
        ("hold", "released"): 1,
        ("hold", "lost"): 1,
    }
