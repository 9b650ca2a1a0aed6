// A broker in memory, for tests of code that uses locks: the same clients and leases, without a network.

import type { Backend, Caller } from "../backend.js";
import { Client } from "../client.js";
import type { Clock } from "../clock.js";
import { clockOf, shareClock } from "../clock.js";
import type { AcquireError, LostReason } from "../errors.js";
import type { Grip } from "../grip.js";
import type { Ask, Entry, LockState } from "../order.js";
import type { LockLike, LockName } from "../target.js";
import { lockOf } from "../target.js";
import { Locks } from "./locks.js";

/** A broker in memory whose locks are all free. */
export class FakeBroker {
  readonly #clock = clockOf(shareClock());
  readonly #locks = new Locks(this.#clock);

  /** A client of it. */
  client(owner = "test"): Client {
    return new Client("http://fake", { owner }, new FakeBackend(this.#locks, this.#clock));
  }

  /**
   * Takes a lock away from everybody who holds it; how many leases are over with all their locks. The next in line
   * gets it at once.
   */
  lose(lock: LockLike, reason: LostReason = "StoreLost", message = ""): number {
    return this.#locks.lose(lockOf(lock), { reason, message });
  }

  /** Answers the next call for this lock with an error, as a broker in trouble does. */
  refuse(lock: LockLike, error: AcquireError): void {
    this.#locks.refuseNext(lockOf(lock), error);
  }

  /** How many hold a lock. */
  holderCount(lock: LockLike): number {
    return this.#locks.holders(lockOf(lock)).length;
  }

  /** How many calls wait for a lock. */
  queueLength(lock: LockLike): number {
    return this.#locks.queueLength(lockOf(lock));
  }
}

/** One client's way to a fake broker. */
class FakeBackend implements Backend {
  constructor(
    private readonly locks: Locks,
    readonly clock: Clock,
  ) {}

  readonly warn = (message: string): void => {
    process.emitWarning(message, "LeaseholdWarning");
  };

  async connect(): Promise<void> {
    // It answers.
  }

  acquire(ask: Ask, caller: Caller): void {
    this.locks.acquire(this, ask, caller);
  }

  cancel(requestId: string): void {
    this.locks.cancel(requestId);
  }

  release(grip: Grip, entry: Entry): Promise<void> {
    this.locks.release(grip, entry);
    return Promise.resolve();
  }

  look(lock: LockName): Promise<LockState | null> {
    return Promise.resolve().then(() => this.locks.look(this, lock));
  }

  close(): Promise<void> {
    this.locks.close(this);
    return Promise.resolve();
  }
}
