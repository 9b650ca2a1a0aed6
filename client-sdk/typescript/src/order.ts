// What is said between a program and the thread that keeps its leases. All of it is plain data.

import type { SharedClock } from "./clock.js";
import type { Loss } from "./errors.js";
import type { LockName, Target } from "./target.js";

/** Somebody who holds a lock, as others may see it. A hint, perhaps stale already. */
export interface Holder {
  /** Public identifier of the lease. */
  readonly leaseId: string;
  /** The process. */
  readonly owner: string;
  /** Why it took the lock. */
  readonly reason: string;
  /** Its fencing token. */
  readonly fencingToken: number;
  /** Since when, by the broker's clock. */
  readonly since: Date | undefined;
  /** Time left on its lease. */
  readonly remainingMs: number;
}

/** A place in line. A hint: it was true when the broker looked, at most once a second. */
export interface Place {
  /** 1 is next. */
  readonly position: number;
  /** How many wait in all. */
  readonly queueLength: number;
  /** Some who hold the lock; at most 5. */
  readonly holders: readonly Holder[];
}

/** What a lock was doing when the broker looked. */
export interface LockState {
  /** At most 100. */
  readonly holders: readonly Holder[];
  /** How many wait. */
  readonly queueLength: number;
  /** The newest token given. */
  readonly lastFencingToken: number;
}

/** Who asks, as people see it. */
export interface Owner {
  id: string;
  reason: string;
  labels: Record<string, string>;
}

/** What is asked for; the same however often it is sent. */
export interface Call {
  targets: readonly Target[];
  owner: Owner;
  /** Secret: whoever has it can repeat the call, and so take the lease. */
  requestId: string;
  ttlMs?: number | undefined;
  maxHoldMs?: number | undefined;
  lockDelayMs?: number | undefined;
  disconnectGraceMs?: number | undefined;
  /** The caller's trace context; empty: none. */
  traceparent: string;
}

/** One acquire. */
export interface Ask {
  call: Call;
  /** How long to wait in line. */
  waitMs: number;
  /** The lease that it adds to. */
  under?: string | undefined;
}

/** What one acquire has of its lease. */
export interface Entry {
  requestId: string;
  locks: LockName[];
}

/** A lock that was taken, and its fencing token. */
export interface Token {
  readonly lock: LockName;
  readonly fencingToken: number;
}

/** What one acquire has got. */
export interface Granted {
  leaseId: string;
  tokens: Token[];
  /** What its holders trust, see Trust. */
  trust: SharedArrayBuffer;
  ttlMs: number;
}

/** The PEM texts of TLS. */
export interface TlsFiles {
  ca?: string | undefined;
  cert?: string | undefined;
  key?: string | undefined;
  serverName?: string | undefined;
}

/** One broker, or a name behind which there are several. */
export interface Endpoint {
  name: string;
  address: string;
  isTls: boolean;
}

/** Where the brokers are, and how to reach and convince them. */
export interface Brokers {
  endpoints: Endpoint[];
  tls: TlsFiles;
  bearerToken?: string | undefined;
  /** A file with the token, read anew for each connection and call, and every second of a stream. */
  bearerTokenFile?: string | undefined;
}

/** What the thread begins with. */
export interface Settings {
  brokers: Brokers;
  clock: SharedClock;
}

/** An error on its way between threads. */
export interface Failure {
  code: string;
  message: string;
  holders: readonly Holder[];
  queueLength: number;
  retryAfterMs?: number | undefined;
  loss?: Loss | undefined;
}

/** To the thread. What has an id is answered. */
export type Order =
  | { kind: "connect"; id: number }
  | { kind: "acquire"; id: number; ask: Ask }
  | { kind: "cancel"; requestId: string }
  | { kind: "release"; id: number; leaseId: string; entry: Entry }
  | { kind: "look"; id: number; lock: LockName }
  /** `done` becomes 1, and whoever waits there is woken, when it has ended. */
  | { kind: "close"; id: number; limitMs: number; done: SharedArrayBuffer };

/** An answer of the thread. */
export type Answer =
  | { kind: "done" }
  | { kind: "granted"; granted: Granted }
  | { kind: "looked"; state: LockState | null }
  | { kind: "failed"; failure: Failure };

/** From the thread. */
export type Word =
  | { kind: "answer"; id: number; answer: Answer }
  | { kind: "place"; id: number; place: Place }
  | { kind: "lost"; leaseId: string; loss: Loss }
  /** Something went wrong that should not. */
  | { kind: "fault"; text: string };
