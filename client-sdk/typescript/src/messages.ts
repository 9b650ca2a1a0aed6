// Messages between the program and the worker thread that renews its leases. All of them are plain data.

import type { SharedClock } from "./clock.js";
import type { Loss } from "./errors.js";
import type { LockName, Target } from "./target.js";

/** A holder of a lock, as other callers may see it. A hint that may be stale. */
export interface Holder {
  /** Public identifier of the lease. */
  readonly leaseId: string;
  /** Name of the process that holds the lock. */
  readonly owner: string;
  /** Reason for which the process acquired the lock. */
  readonly reason: string;
  /** Fencing token of the grant. */
  readonly fencingToken: number;
  /** Time of the grant by the broker's clock. */
  readonly since: Date | undefined;
  /** Time until the lease expires, in milliseconds. */
  readonly remainingMs: number;
}

/** Cause of a closure. Values may be added. */
export type ClosureCause =
  /** The `lockDelayMs` of a lease that expired or was revoked. */
  | "LockDelay"
  /** The `atLeastMs` of a lease that has ended. */
  | "AtLeast"
  /** A command of an operator. */
  | "Operator"
  /** A cause that this version of the client does not define. */
  | "Other";

/** A period in which a lock grants nothing new. A hint that may be stale. */
export interface Closure {
  readonly cause: ClosureCause;
  /** Name of the process whose lease has ended, or of the operator; empty if the caller may not observe the lock. */
  readonly owner: string;
  /** Reason of the process for its lease, or of the operator; may be empty. */
  readonly reason: string;
  /** End of the period by the clock of the store, if the broker sent it. */
  readonly until: Date | undefined;
  /** Time until the end of the period, in milliseconds. */
  readonly remainingMs: number;
}

/** A period after a loss of data in which the store grants nothing new. */
export interface StoreRecovery {
  /** Cause for people, as the rest of a sentence that begins with the name of the store: `was restarted`. */
  readonly cause: string;
  /** Beginning of the period by the clock of the store, if it is known. */
  readonly since: Date | undefined;
  /** Time until the end of the period, in milliseconds. */
  readonly remainingMs: number;
}

/** Position in the queue of a lock. A hint, which the broker updates at most once a second. */
export interface QueuePosition {
  /**
   * Position counted from 1, which is the next waiter. 0 if the call is not in the queue yet, because the store recovers:
   * the client repeats the call until the end of its wait.
   */
  readonly position: number;
  /** Number of all waiters. */
  readonly queueLength: number;
  /** Some holders of the lock; at most 5. */
  readonly holders: readonly Holder[];
  /** Closure of the lock, if it is closed. */
  readonly closure: Closure | undefined;
  /** Recovery of the store, while it grants nothing new. */
  readonly recovery: StoreRecovery | undefined;
}

/** Permits of a semaphore. */
export interface PermitUsage {
  /** Limit in use. */
  readonly limit: number;
  /** Permits of all holders; more than the limit if it was lowered while they were held. */
  readonly used: number;
  /** Permits that are not held. */
  readonly free: number;
  /** True if the limit was set with `Client.setLimit`, false if it is the limit of the present callers. */
  readonly isLimitSet: boolean;
}

/** Creates the permit usage of a limit. */
export function createPermitUsage(limit: number, used: number, isLimitSet: boolean): PermitUsage {
  return { limit, used, free: Math.max(0, limit - used), isLimitSet };
}

/** State of a lock when the broker read it. */
export interface LockState {
  /** Holders of the lock; at most 100. */
  readonly holders: readonly Holder[];
  /** Number of waiters. */
  readonly queueLength: number;
  /** Fencing token of the latest grant. */
  readonly lastFencingToken: number;
  /** Closure of the lock, if it is closed. */
  readonly closure: Closure | undefined;
  /** Permits of a semaphore that has holders or waiters, or a set limit. */
  readonly permitUsage: PermitUsage | undefined;
}

/** Description of a caller for operators and other callers. */
export interface Owner {
  id: string;
  reason: string;
  labels: Record<string, string>;
}

/** Parameters of an acquire, which are equal in all attempts. */
export interface AcquireParams {
  targets: readonly Target[];
  owner: Owner;
  /** Secret: a client that has the request id can repeat the call, and so attach the lease. */
  requestId: string;
  ttlMs?: number | undefined;
  maxHoldMs?: number | undefined;
  lockDelayMs?: number | undefined;
  disconnectGraceMs?: number | undefined;
  atLeastMs?: number | undefined;
  /** Trace context of the caller; empty if there is none. */
  traceparent: string;
}

/** An acquire as the program sends it to the worker thread. */
export interface AcquireCommand {
  params: AcquireParams;
  /** Time to wait in the queue. */
  waitMs: number;
  /** Id of the lease to which the locks are added. */
  under?: string | undefined;
}

/** Locks of a lease that one acquire was granted. */
export interface AcquireScope {
  requestId: string;
  locks: LockName[];
}

/** A granted lock and its fencing token. */
export interface LockGrant {
  readonly lock: LockName;
  readonly fencingToken: number;
}

/** Result of a granted acquire. */
export interface GrantedLease {
  leaseId: string;
  grants: LockGrant[];
  /** Shared memory of the validity of the lease; see `LeaseValidity`. */
  validity: SharedArrayBuffer;
  ttlMs: number;
}

/** TLS settings, as PEM texts. */
export interface TlsSettings {
  ca?: string | undefined;
  cert?: string | undefined;
  key?: string | undefined;
  serverName?: string | undefined;
}

/** Address of a broker, or of several brokers behind one name. */
export interface Endpoint {
  name: string;
  address: string;
  isTls: boolean;
}

/** Endpoints of the brokers, with TLS settings and credentials. */
export interface ConnectionSettings {
  endpoints: Endpoint[];
  tls: TlsSettings;
  bearerToken?: string | undefined;
  /** File that contains the token. Read for each connection and call, and every second while a stream is open. */
  bearerTokenFile?: string | undefined;
}

/** Start parameters of the worker thread. */
export interface WorkerSettings {
  connectionSettings: ConnectionSettings;
  clock: SharedClock;
}

/** An error as plain data, which is sent between threads. */
export interface Failure {
  code: string;
  message: string;
  holders: readonly Holder[];
  queueLength: number;
  closure?: Closure | undefined;
  retryAfterMs?: number | undefined;
  loss?: Loss | undefined;
}

/** A command to the worker thread. Commands with an id are answered. */
export type Command =
  | { kind: "connect"; id: number }
  | { kind: "acquire"; id: number; acquire: AcquireCommand }
  | { kind: "cancel"; requestId: string }
  | { kind: "release"; id: number; leaseId: string; scope: AcquireScope }
  | { kind: "getLockState"; id: number; lock: LockName }
  | { kind: "setLimit"; id: number; lock: LockName; limit: number | null }
  /** Closes all streams. Afterwards the thread sets `done` to 1 and wakes the threads that wait on `done`. */
  | { kind: "close"; id: number; timeoutMs: number; closedFlag: SharedArrayBuffer };

/** The response of the worker thread to a command. */
export type CommandResponse =
  | { kind: "done" }
  | { kind: "granted"; lease: GrantedLease }
  | { kind: "lockState"; state: LockState | null }
  | { kind: "previousLimit"; limit: number | null }
  | { kind: "failed"; failure: Failure };

/** A message from the worker thread. */
export type WorkerMessage =
  | { kind: "response"; id: number; response: CommandResponse }
  | { kind: "position"; id: number; position: QueuePosition }
  | { kind: "lost"; leaseId: string; loss: Loss }
  /** An exception in the worker thread. */
  | { kind: "error"; text: string };
