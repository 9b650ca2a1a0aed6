// What the client tells of itself by OpenTelemetry.

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

import { Broker } from "./processes.js";
import { Proxy } from "./proxy.js";
import { clientOf, inLine } from "./site.js";

test("calls are spans, the broker hears of them, and times are measured", async (t) => {
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
  await inLine(client, "a", 1);
  await lease.release();
  await (await next).release();

  const found = spans.getFinishedSpans().filter((span) => span.name === "lock.acquire");
  const outcomes = found.map((span) => span.attributes["outcome"]);
  assert.deepEqual(outcomes, ["granted", "held", "granted"]);
  assert.equal(found[0]?.spanContext().traceId, traceId);
  assert.deepEqual(
    found[2]?.events.map((event) => event.name),
    ["queued", "granted"],
  );
  assert(proxy.sent.includes(`00-${traceId}-`), "the broker is told of the trace");
  await reader.forceFlush();
  const names = exporter.getMetrics().flatMap((one) => one.scopeMetrics.flatMap((scope) => scope.metrics));
  const counted = names.map((metric) => [metric.descriptor.name, metric.dataPoints.length]);
  assert.deepEqual(Object.fromEntries(counted), {
    "leasehold.client.wait.duration": 2,
    "leasehold.client.hold.duration": 1,
  });
  await reader.shutdown();
});
