// What the running code holds, so that code deep inside can make sure of it.

import { AsyncLocalStorage } from "node:async_hooks";

import { NotHeldError } from "./errors.js";
import type { Lease } from "./lease.js";
import type { LockLike } from "./target.js";
import { lockOf, shownLock } from "./target.js";

const storage = new AsyncLocalStorage<readonly Lease[]>();

/** Runs code with the lease. */
export function runHolding<T>(lease: Lease, run: () => T): T {
  return storage.run([...(storage.getStore() ?? []), lease], run);
}

/**
 * The lease under which the running code has this lock, taken by a `using` or `locked` call around it.
 *
 * Throws NotHeldError if there is none, and LeaseLostError if it was lost.
 */
export function assertHeld(lock: LockLike): Lease {
  const found = storage.getStore()?.findLast((lease) => lease.fencingTokenOf(lock) !== undefined);
  if (found === undefined) {
    throw new NotHeldError(`the running code does not hold ${shownLock(lockOf(lock))}`);
  }
  found.check();
  return found;
}
