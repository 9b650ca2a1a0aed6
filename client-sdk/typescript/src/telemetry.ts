// Telemetry by OpenTelemetry, if the program has installed it: a span for each acquire, the trace context for the
// broker, and histograms of wait times and hold times.

import { createRequire } from "node:module";

import type * as OpenTelemetry from "@opentelemetry/api";

import type { LeaseholdError } from "./errors.js";
import type { QueuePosition } from "./messages.js";

const api = load();

function load(): typeof OpenTelemetry | null {
  try {
    return createRequire(import.meta.url)("@opentelemetry/api") as typeof OpenTelemetry;
  } catch {
    return null;
  }
}

/** Telemetry of one acquire: the span `lock.acquire` and the wait time. */
export class AcquireTelemetry {
  private readonly startedAt = performance.now();
  private readonly span: OpenTelemetry.Span | undefined;
  /**
   * Value of the W3C header `traceparent`; empty without a span. Each call carries its own trace context, because one
   * stream carries many calls.
   */
  readonly traceparent: string;

  constructor(locks: string[], waitMs: number) {
    const attributes = { locks, wait: waitMs / 1000 };
    this.span = api?.trace.getTracer("leasehold").startSpan("lock.acquire", { attributes });
    const carrier: { traceparent?: string } = {};
    if (api !== null && this.span !== undefined) {
      api.propagation.inject(api.trace.setSpan(api.context.active(), this.span), carrier);
    }
    this.traceparent = carrier.traceparent ?? "";
  }

  /** Records a queue position. */
  recordQueued(position: QueuePosition): void {
    this.span?.addEvent("queued", { position: position.position, queue_length: position.queueLength });
  }

  /** Records that the locks were granted. */
  recordGranted(leaseId: string): void {
    this.span?.addEvent("granted", { lease_id: leaseId });
    this.end("granted");
  }

  /**
   * Records that the locks were not granted. The span has no error status, because a held lock is a regular outcome.
   */
  recordFailed(error: LeaseholdError): void {
    this.span?.addEvent("not granted", { error: error.message });
    this.end(OUTCOMES[error.code] ?? "failed");
  }

  /** Records that the caller has cancelled the call. */
  recordCancelled(): void {
    this.end("cancelled");
  }

  private end(outcome: string): void {
    recordDuration(
      "leasehold.client.wait.duration",
      "Time from a call to its response, by outcome.",
      this.startedAt,
      outcome,
    );
    this.span?.setAttribute("outcome", outcome);
    this.span?.end();
  }
}

const OUTCOMES: Partial<Record<string, string>> = { Held: "held", WaitTimeout: "wait_timeout" };

/** Records the hold time of a lease that was granted at `since`, a time of `performance.now()`. */
export function recordHoldTime(since: number, isLost: boolean): void {
  const outcome = isLost ? "lost" : "released";
  recordDuration(
    "leasehold.client.hold.duration",
    "Time from a grant to the end of its lease, by outcome.",
    since,
    outcome,
  );
}

// Keyed by meter, because the program may set a meter provider after this module was loaded.
const histograms = new WeakMap<OpenTelemetry.Meter, Map<string, OpenTelemetry.Histogram>>();

function recordDuration(name: string, description: string, since: number, outcome: string): void {
  const meter = api?.metrics.getMeter("leasehold");
  if (meter === undefined) {
    return;
  }
  const byName = histograms.get(meter) ?? new Map<string, OpenTelemetry.Histogram>();
  histograms.set(meter, byName);
  const histogram = byName.get(name) ?? meter.createHistogram(name, { unit: "s", description });
  byName.set(name, histogram);
  histogram.record((performance.now() - since) / 1000, { outcome });
}
