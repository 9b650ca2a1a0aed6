// Options of an acquire, and their checks.

import { InvalidError } from "./errors.js";
import type { Lease } from "./lease.js";
import type { AcquireParams, QueuePosition } from "./messages.js";
import type { LockLike, Target } from "./target.js";
import { checkedTarget, targetOf } from "./target.js";

/** Default time for which an acquire waits in the queue. */
export const WAIT_DEFAULT_MS = 30_000;
/** Longest wait that a broker allows. A longer wait is split. */
export const WAIT_MAX_MS = 3_600_000;

/** Options of a call that acquires locks. Times are in milliseconds. */
export interface AcquireOptions {
  /**
   * Time for which the lock stays valid after each heartbeat, and so the time that others wait if this process dies. 1
   * s to 60 s unless the broker is configured otherwise; default 10 s.
   */
  ttlMs?: number | undefined;
  /**
   * Time to wait in the queue; default 30 s, `Infinity` waits without limit. A wait longer than an hour enters the
   * queue again at its end after each hour. Ignored by calls that do not wait.
   */
  waitMs?: number | undefined;
  /** Reason for the lock, for callers and operators that find it held. At most 512 bytes. */
  reason?: string | undefined;
  /** Labels for lists and logs; at most 16. */
  labels?: Readonly<Record<string, string>> | undefined;
  /** `Target.namespace` of all locks of the call. */
  namespace?: string | undefined;
  /** `Target.shared` of all locks of the call. */
  shared?: boolean | undefined;
  /** `Target.permits` of all locks of the call. */
  permits?: number | undefined;
  /** `Target.limit` of all locks of the call. */
  limit?: number | undefined;
  /** Longest time for which the lock may be held in all. Then it is lost with `MaxHold`. */
  maxHoldMs?: number | undefined;
  /**
   * Time for which the lock grants nothing after an expiry or revocation, at most 60 s. Use it for resources that
   * cannot check fencing tokens.
   */
  lockDelayMs?: number | undefined;
  /**
   * Time after which the lock is released when this client's stream breaks, even if the lease is still valid. Frees the
   * lock sooner after a crash, but a holder behind a broken network may overlap with the next one.
   */
  disconnectGraceMs?: number | undefined;
  /**
   * Time after the grant until which the lock stays closed, however the lease ends, for a job that runs once a period.
   * Not shorter than the validity; the broker allows at most a day by default. A job that died is not run again within
   * the period, unless an operator opens the lock.
   */
  atLeastMs?: number | undefined;
  /**
   * Lease to which the lock is added, or which re-enters a lock that it already has. Both leases are lost together.
   * Each releases what its own call acquired.
   */
  under?: Lease | undefined;
  /** Cancels the call when aborted: it leaves the queue, and a lock that is granted at that moment is released. */
  signal?: AbortSignal | undefined;
  /** Called with the queue position, initially and after changes, at most once a second. */
  onQueue?: ((position: QueuePosition) => void) | undefined;
  /** Called once with the lease when it is lost. */
  onLost?: ((lease: Lease) => void) | undefined;
}

/** Returns the parameters of an acquire. Throws if they are invalid or cannot be encoded. */
export function acquireParamsOf(
  owner: string,
  locks: readonly LockLike[],
  options: AcquireOptions,
): Omit<AcquireParams, "requestId"> {
  if (locks.length === 0) {
    throw new InvalidError("no lock: name at least one");
  }
  return {
    targets: locks.map((lock) => withOptions(targetOf(lock), options)),
    owner: { id: owner, reason: checkedText("reason", options.reason), labels: labelsOf(options) },
    ttlMs: checkedMs("ttlMs", options.ttlMs),
    maxHoldMs: checkedMs("maxHoldMs", options.maxHoldMs),
    lockDelayMs: checkedMs("lockDelayMs", options.lockDelayMs),
    disconnectGraceMs: checkedMs("disconnectGraceMs", options.disconnectGraceMs),
    atLeastMs: checkedMs("atLeastMs", options.atLeastMs),
    traceparent: "",
  };
}

/** Returns the time for which a call waits, in milliseconds. */
export function waitMsOf(options: AcquireOptions): number {
  const waitMs = options.waitMs ?? WAIT_DEFAULT_MS;
  return waitMs === Infinity ? waitMs : (checkedMs("waitMs", waitMs) ?? 0);
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
  return Object.fromEntries(Object.entries(labels).map(([key, value]) => [key, checkedText("labels", value)]));
}

/** Checks the type, because a value that cannot be encoded would break the stream that all calls share. */
function checkedText(name: string, value: string | undefined): string {
  if (value !== undefined && typeof value !== "string") {
    throw new TypeError(`${name}: expected a string`);
  }
  return value ?? "";
}

function checkedMs(name: string, ms: number | undefined): number | undefined {
  if (ms !== undefined && !(typeof ms === "number" && ms >= 0 && ms < Number.MAX_SAFE_INTEGER)) {
    throw new RangeError(`${name}: ${String(ms)} is not a duration in milliseconds`);
  }
  return ms;
}
