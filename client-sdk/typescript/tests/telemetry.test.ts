// Tests of spans, trace context and metrics.

import assert from "node:assert/strict";
import { test } from "node:test";

import { context, metrics, propagation, trace } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { W3CTraceContextPropagator } from "@opentelemetry/core";
import {
  AggregationTemporality,
  InMemoryMetricExporter,
  MeterProvider,
  PeriodicExportingMetricReader,
} from "@opentelemetry/sdk-metrics";
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-base";

import { clientOf, waitForQueueLength } from "./fixtures.js";
import { Broker } from "./processes.js";
import { Proxy } from "./proxy.js";

test("calls are recorded as spans and metrics, and the broker receives their trace context", async (t) => {
  const spans = new InMemorySpanExporter();
  trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(spans)] }));
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator(new W3CTraceContextPropagator());
  const exporter = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE);
  const reader = new PeriodicExportingMetricReader({ exporter });
  metrics.setGlobalMeterProvider(new MeterProvider({ readers: [reader] }));

  const proxy = await Proxy.start(t, (await Broker.start(t)).addr);
  const client = clientOf(t, proxy.url);
  let traceId = "";
  const lease = await trace.getTracer("test").startActiveSpan("work", (span) => {
    ({ traceId } = span.spanContext());
    return client.acquire("a").finally(() => {
      span.end();
    });
  });
  assert.equal(await client.tryAcquire("a"), null);
  const next = client.acquire("a");
  await waitForQueueLength(client, "a", 1);
  await lease.release();
  await (await next).release();

  const acquireSpans = spans.getFinishedSpans().filter((span) => span.name === "lock.acquire");
  const outcomes = acquireSpans.map((span) => span.attributes["outcome"]);
  assert.deepEqual(outcomes, ["granted", "held", "granted"]);
  assert.equal(acquireSpans[0]?.spanContext().traceId, traceId);
  assert.deepEqual(
    acquireSpans[2]?.events.map((event) => event.name),
    ["queued", "granted"],
  );
  assert(proxy.sentText.includes(`00-${traceId}-`), "the trace context was not sent to the broker");
  await reader.forceFlush();
  const metricData = exporter.getMetrics().flatMap((one) => one.scopeMetrics.flatMap((scope) => scope.metrics));
  const dataPointCounts = metricData.map((metric) => [metric.descriptor.name, metric.dataPoints.length]);
  assert.deepEqual(Object.fromEntries(dataPointCounts), {
    "leasehold.client.wait.duration": 2,
    "leasehold.client.hold.duration": 1,
  });
  await reader.shutdown();
});
