// Leases held by the current asynchronous context, which `assertHeld` checks.

import { AsyncLocalStorage } from "node:async_hooks";

import { NotHeldError } from "./errors.js";
import type { Lease } from "./lease.js";
import type { LockLike } from "./target.js";
import { formatLock, lockOf } from "./target.js";

const storage = new AsyncLocalStorage<readonly Lease[]>();

/** Runs `run` in a context that holds the lease. */
export function runWithLease<T>(lease: Lease, run: () => T): T {
  return storage.run([...(storage.getStore() ?? []), lease], run);
}

/**
 * Returns the lease under which the calling code holds this lock, acquired by an enclosing `using` or `locked` call.
 *
 * Throws NotHeldError without an enclosing call for the lock, and LeaseLostError if the lock was lost.
 */
export function assertHeld(lock: LockLike): Lease {
  const lease = storage.getStore()?.findLast((lease) => lease.fencingTokenOf(lock) !== undefined);
  if (lease === undefined) {
    throw new NotHeldError(`the running code does not hold ${formatLock(lockOf(lock))}`);
  }
  lease.check();
  return lease;
}
