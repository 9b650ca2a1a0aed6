// What the client tells of itself by OpenTelemetry, if the program has it: a span for each call that takes locks, the
// trace context to the broker, and how long calls waited and locks were held to the program's meter.

import { createRequire } from "node:module";

import type * as OpenTelemetry from "@opentelemetry/api";

import type { LeaseholdError } from "./errors.js";
import type { Place } from "./order.js";

const api = load();

function load(): typeof OpenTelemetry | null {
  try {
    return createRequire(import.meta.url)("@opentelemetry/api") as typeof OpenTelemetry;
  } catch {
    return null;
  }
}

/** One call that takes locks: the span `lock.acquire`. */
export class Acquiring {
  private readonly begun = performance.now();
  private readonly span: OpenTelemetry.Span | undefined;
  /** As in the W3C header of this name; empty: none. Each call has its own, since one stream carries many. */
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

  /** A place in line. */
  queued(place: Place): void {
    this.span?.addEvent("queued", { position: place.position, queue_length: place.queueLength });
  }

  /** The call has got its locks. */
  granted(leaseId: string): void {
    this.span?.addEvent("granted", { lease_id: leaseId });
    this.end("granted");
  }

  /** The call has got nothing. That a lock is held is an answer, and no error of the span. */
  failed(error: LeaseholdError): void {
    this.span?.addEvent("not granted", { error: error.message });
    this.end(OUTCOMES[error.code] ?? "failed");
  }

  /** The caller is gone. */
  cancelled(): void {
    this.end("cancelled");
  }

  private end(outcome: string): void {
    record("leasehold.client.wait.duration", "From a call to its answer, by outcome.", this.begun, outcome);
    this.span?.setAttribute("outcome", outcome);
    this.span?.end();
  }
}

const OUTCOMES: Partial<Record<string, string>> = { Held: "held", WaitTimeout: "wait_timeout" };

/** A lease has ended that began then. */
export function recordHeld(since: number, isLost: boolean): void {
  const outcome = isLost ? "lost" : "released";
  record("leasehold.client.hold.duration", "From a grant to the end of its lease, by outcome.", since, outcome);
}

// By meter: a program may set its own after this was loaded.
const histograms = new WeakMap<OpenTelemetry.Meter, Map<string, OpenTelemetry.Histogram>>();

function record(name: string, description: string, since: number, outcome: string): void {
  const meter = api?.metrics.getMeter("leasehold");
  if (meter === undefined) {
    return;
  }
  const own = histograms.get(meter) ?? new Map<string, OpenTelemetry.Histogram>();
  histograms.set(meter, own);
  const histogram = own.get(name) ?? meter.createHistogram(name, { unit: "s", description });
  own.set(name, histogram);
  histogram.record((performance.now() - since) / 1000, { outcome });
}
