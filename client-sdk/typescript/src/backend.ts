// Interface between a client and its brokers: the worker thread, or the fake broker of tests.

import type { Clock } from "./clock.js";
import type { LeaseholdError } from "./errors.js";
import type { LeaseHandle } from "./lease-handle.js";
import type { AcquireCommand, AcquireScope, LockState, QueuePosition } from "./messages.js";
import type { LockName } from "./target.js";

/** Callbacks of an acquire. */
export interface AcquireCallbacks {
  /** Receives the queue position. */
  onPosition(position: QueuePosition): void;
  /** Receives the granted locks. */
  onGranted(handle: LeaseHandle): void;
  /** Receives the error of an acquire that was not granted. */
  onFailed(error: LeaseholdError): void;
}

/** A component that acquires locks and renews their leases. */
export interface Backend {
  readonly clock: Clock;
  /** Reports an unexpected condition, as text for people. */
  readonly warn: (message: string) => void;
  /** Resolves when a broker responds. */
  connect(): Promise<void>;
  /** Acquires locks and renews their lease. */
  acquire(command: AcquireCommand, callbacks: AcquireCallbacks): void;
  /** Cancels an acquire: its callbacks are not called again, and granted locks are released. */
  cancel(requestId: string): void;
  /** Releases the locks of one acquire. Rejects if the release failed or the lease was lost. */
  release(handle: LeaseHandle, scope: AcquireScope): Promise<void>;
  /** Returns the state of a lock, or null if it has no holders, waiters, closure and set limit. */
  getLockState(lock: LockName): Promise<LockState | null>;
  /** Sets the limit of a semaphore, or removes it if `limit` is null. Returns the previous limit. */
  setLimit(lock: LockName, limit: number | null): Promise<number | null>;
  /** Cancels every wait, releases every lease, and closes the backend. */
  close(): Promise<void>;
}
