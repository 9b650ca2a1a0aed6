// A fake broker in memory, for tests of code that uses locks: the same clients and leases, without a network.

import type { AcquireCallbacks, Backend } from "../backend.js";
import { Client } from "../client.js";
import type { Clock } from "../clock.js";
import { clockOf, createSharedClock } from "../clock.js";
import type { AcquireError, LostReason } from "../errors.js";
import type { LeaseHandle } from "../lease-handle.js";
import type { AcquireCommand, AcquireScope, LockState } from "../messages.js";
import type { LockLike, LockName } from "../target.js";
import { lockOf } from "../target.js";
import { Locks } from "./locks.js";

/** A broker in memory whose locks are all free. */
export class FakeBroker {
  readonly #clock = clockOf(createSharedClock());
  readonly #locks = new Locks(this.#clock);

  /** Returns a client of this broker. */
  client(owner = "test"): Client {
    return new Client("http://fake", { owner }, new FakeBackend(this.#locks, this.#clock));
  }

  /**
   * Ends all leases that hold this lock, with all their locks, and returns their number. The next waiter acquires the
   * lock at once.
   */
  lose(lock: LockLike, reason: LostReason = "StoreLost", message = ""): number {
    return this.#locks.lose(lockOf(lock), { reason, message });
  }

  /** Rejects the next acquire of this lock with an error. */
  refuse(lock: LockLike, error: AcquireError): void {
    this.#locks.rejectNext(lockOf(lock), error);
  }

  /** Returns the number of holders of a lock. */
  holderCount(lock: LockLike): number {
    return this.#locks.holders(lockOf(lock)).length;
  }

  /** Returns the number of calls that wait for a lock. */
  queueLength(lock: LockLike): number {
    return this.#locks.queueLength(lockOf(lock));
  }
}

/** Backend of one client of a fake broker. */
class FakeBackend implements Backend {
  constructor(
    private readonly locks: Locks,
    readonly clock: Clock,
  ) {}

  readonly warn = (message: string): void => {
    process.emitWarning(message, "LeaseholdWarning");
  };

  async connect(): Promise<void> {
    // A fake broker is always connected.
  }

  acquire(command: AcquireCommand, callbacks: AcquireCallbacks): void {
    this.locks.acquire(this, command, callbacks);
  }

  cancel(requestId: string): void {
    this.locks.cancel(requestId);
  }

  release(handle: LeaseHandle, scope: AcquireScope): Promise<void> {
    this.locks.release(handle, scope);
    return Promise.resolve();
  }

  getLockState(lock: LockName): Promise<LockState | null> {
    return Promise.resolve().then(() => this.locks.getState(this, lock));
  }

  setLimit(lock: LockName, limit: number | null): Promise<number | null> {
    return Promise.resolve().then(() => this.locks.setLimit(this, lock, limit));
  }

  close(): Promise<void> {
    this.locks.close(this);
    return Promise.resolve();
  }
}
