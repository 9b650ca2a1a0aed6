// How a lock is taken: what a caller may say besides its name.

import { InvalidError } from "./errors.js";
import type { Lease } from "./lease.js";
import type { Call, Place } from "./order.js";
import type { LockLike, Target } from "./target.js";
import { checkedTarget, targetOf } from "./target.js";

/** How long acquire waits in line unless told otherwise. */
export const WAIT_DEFAULT_MS = 30_000;
/** The longest wait that a broker allows; a longer one is several of these. */
export const WAIT_MAX_MS = 3_600_000;

/** What a call that takes locks accepts besides the locks. Times are in milliseconds. */
export interface AcquireOptions {
  /**
   * How long the lock can be trusted after each heartbeat, and so how long others wait when this process dies. 1 s to
   * 60 s unless the broker says otherwise; default 10 s.
   */
  ttlMs?: number | undefined;
  /**
   * How long to wait in line; default 30 s, and `Infinity` is for ever. After each hour the place in line begins again
   * at its end. Has no meaning for calls that do not wait.
   */
  waitMs?: number | undefined;
  /** Why the lock is taken, for whoever finds it held. At most 512 bytes. */
  reason?: string | undefined;
  /** For lists and logs; at most 16. */
  labels?: Readonly<Record<string, string>> | undefined;
  /** As in Target, for all locks of the call. */
  namespace?: string | undefined;
  /** As in Target, for all locks of the call. */
  shared?: boolean | undefined;
  /** As in Target, for all locks of the call. */
  permits?: number | undefined;
  /** As in Target, for all locks of the call. */
  limit?: number | undefined;
  /** The longest the lock may be held in all; then it is lost with `MaxHold`. */
  maxHoldMs?: number | undefined;
  /**
   * Keeps the lock closed for so long after an expiry or revocation, at most 60 s; for resources that cannot check
   * fencing tokens.
   */
  lockDelayMs?: number | undefined;
  /**
   * Frees the lock so long after this client's stream broke, even if this process may still trust it: faster after a
   * crash, but a holder behind a broken network may overlap with the next one.
   */
  disconnectGraceMs?: number | undefined;
  /**
   * Adds the lock to this lease, or enters a lock once more that the lease has. Both are lost together; each gives
   * back what it took itself.
   */
  under?: Lease | undefined;
  /** Gives the call up: its place in line is left, and a lock that was granted at that moment is given back. */
  signal?: AbortSignal | undefined;
  /** Called with the place in line, at first and when it changes, at most once a second. */
  onQueue?: ((place: Place) => void) | undefined;
  /** Called once with the lease when it is lost. */
  onLost?: ((lease: Lease) => void) | undefined;
}

/** What a call asks for, checked; what cannot be sent has failed here. */
export function callOf(owner: string, locks: readonly LockLike[], options: AcquireOptions): Omit<Call, "requestId"> {
  if (locks.length === 0) {
    throw new InvalidError("no lock is named");
  }
  return {
    targets: locks.map((lock) => withOptions(targetOf(lock), options)),
    owner: { id: owner, reason: text("reason", options.reason), labels: labelsOf(options) },
    ttlMs: time("ttlMs", options.ttlMs),
    maxHoldMs: time("maxHoldMs", options.maxHoldMs),
    lockDelayMs: time("lockDelayMs", options.lockDelayMs),
    disconnectGraceMs: time("disconnectGraceMs", options.disconnectGraceMs),
    traceparent: "",
  };
}

/** How long a call waits. */
export function waitOf(options: AcquireOptions): number {
  const waitMs = options.waitMs ?? WAIT_DEFAULT_MS;
  return waitMs === Infinity ? waitMs : (time("waitMs", waitMs) ?? 0);
}

function withOptions(target: Target, options: AcquireOptions): Target {
  return checkedTarget({
    name: target.name,
    namespace: options.namespace ?? target.namespace,
    shared: options.shared ?? target.shared,
    permits: options.permits ?? target.permits,
    limit: options.limit ?? target.limit,
  });
}

function labelsOf({ labels = {} }: AcquireOptions): Record<string, string> {
  return Object.fromEntries(Object.entries(labels).map(([key, value]) => [key, text("labels", value)]));
}

/** What could not be sent would end the stream that others need. */
function text(name: string, value: string | undefined): string {
  if (value !== undefined && typeof value !== "string") {
    throw new TypeError(`${name}: a string is expected`);
  }
  return value ?? "";
}

function time(name: string, ms: number | undefined): number | undefined {
  if (ms !== undefined && !(typeof ms === "number" && ms >= 0 && ms < Number.MAX_SAFE_INTEGER)) {
    throw new RangeError(`${name}: ${String(ms)} is no span of time in milliseconds`);
  }
  return ms;
}
