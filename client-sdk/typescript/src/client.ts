// A client: one for each process.

import { setTimeout as sleep } from "node:timers/promises";

import { Acquire } from "./acquire.js";
import type { Backend } from "./backend.js";
import { Election } from "./election.js";
import { LeaseLostError } from "./errors.js";
import { runHolding } from "./held.js";
import type { Lease } from "./lease.js";
import { releaseQuietly } from "./lease.js";
import type { AcquireOptions } from "./options.js";
import type { LockState } from "./order.js";
import type { ClientOptions } from "./settings.js";
import { brokersOf, ownerOf } from "./settings.js";
import type { LockLike } from "./target.js";
import { lockOf } from "./target.js";
import { ThreadBackend } from "./thread.js";

/** What a call that does not wait takes besides the locks. */
export interface TryOptions extends Omit<AcquireOptions, "waitMs"> {
  /** Tries up to so many times. Default: once. Waiting in line, as `acquire` does, is fair and faster. */
  attempts?: number | undefined;
  /** How long to wait between attempts, give or take a quarter. */
  everyMs?: number | undefined;
}

/** What an election takes. */
export interface ElectionOptions {
  /** As in AcquireOptions. */
  ttlMs?: number | undefined;
  /** As in AcquireOptions. */
  reason?: string | undefined;
}

/** A piece of work under a lock. Pass the signal on: it is aborted when the lock is lost. */
export type Work<T> = (lease: Lease, signal: AbortSignal) => T | PromiseLike<T>;

/**
 * Takes locks. A thread of its own keeps its leases alive, so that nothing the program does can hold heartbeats up. It
 * keeps no process alive but one that waits for an answer.
 */
export class Client implements AsyncDisposable {
  /** The name of this process, as people find it. */
  readonly owner: string;
  readonly #backend: Backend;

  /**
   * Checks the settings; nothing is begun before the first call or `connect`.
   *
   * endpoints: URLs, in a list or separated by commas, as in `http://a:7070,http://b:7070`. One is used at a time; the
   * others are for when it does not answer any more.
   */
  constructor(endpoints: string | readonly string[], options?: ClientOptions);
  /** @internal */
  // eslint-disable-next-line @typescript-eslint/unified-signatures -- one of them is nobody else's
  constructor(endpoints: string | readonly string[], options: ClientOptions, backend: Backend);
  constructor(endpoints: string | readonly string[], options: ClientOptions = {}, backend?: Backend) {
    this.owner = ownerOf(options);
    this.#backend = backend ?? makeBackend(endpoints, options);
  }

  /** Makes sure that a broker answers now, instead of at the first call. Rejects with UnreachableError or CredentialRefusedError. */
  async connect(): Promise<this> {
    await this.#backend.connect();
    return this;
  }

  /**
   * Takes a lock, waiting in line.
   *
   * Rejects with WaitTimeoutError if it was held for all of `waitMs`, with HeldError if that is 0; with
   * UnavailableError up to 5 s after that if no broker could answer; with the reason of `signal` when that is aborted.
   * Then the place in line is given up, and a lock that was granted at that moment is given back.
   */
  async acquire(lock: LockLike, options: AcquireOptions = {}): Promise<Lease> {
    return new Acquire(this.#backend, this.owner, [lock], options).wait();
  }

  /** Takes 2-16 different locks, all or none under one lease, in an order that cannot deadlock. As `acquire`. */
  async acquireAll(locks: readonly LockLike[], options: AcquireOptions = {}): Promise<Lease> {
    return new Acquire(this.#backend, this.owner, locks, options).wait();
  }

  /** Takes a lock if it is free; null: somebody else has it. */
  async tryAcquire(lock: LockLike, options: TryOptions = {}): Promise<Lease | null> {
    return this.tryAcquireAll([lock], options);
  }

  /** Takes several locks if all are free; null: somebody else has one of them. */
  async tryAcquireAll(locks: readonly LockLike[], options: TryOptions = {}): Promise<Lease | null> {
    const { attempts = 1, everyMs = 0, signal } = options;
    const acquire = new Acquire(this.#backend, this.owner, locks, options);
    for (let attempt = 1; ; attempt += 1) {
      const lease = await acquire.try();
      if (lease !== null || attempt >= attempts) {
        return lease;
      }
      await sleep(everyMs * (0.75 + Math.random() / 2), undefined, { signal });
    }
  }

  /** Does a piece of work while a lock is held, or several, and gives back; what the work returns. */
  using<T>(locks: LockLike | readonly LockLike[], work: Work<T>): Promise<T>;
  /**
   * Does a piece of work while a lock is held, or several, and gives back; what the work returns.
   *
   * Rejects as `acquire` does, with the error of the work, and with LeaseLostError if the lock was lost meanwhile and
   * the work has ended without an error, or with the one that its signal has brought about. It always waits for the
   * end of the work, which nothing but the signal can stop.
   */
  using<T>(locks: LockLike | readonly LockLike[], options: AcquireOptions, work: Work<T>): Promise<T>;
  async using<T>(
    locks: LockLike | readonly LockLike[],
    optionsOrWork: AcquireOptions | Work<T>,
    maybeWork?: Work<T>,
  ): Promise<T> {
    const [options, work] = typeof optionsOrWork === "function" ? [{}, optionsOrWork] : [optionsOrWork, maybeWork];
    if (work === undefined) {
      throw new TypeError("no work is given");
    }
    const named = isSeveral(locks) ? locks : [locks];
    const lease = await new Acquire(this.#backend, this.owner, named, options).wait();
    let result: T;
    try {
      result = await runHolding(lease, () => work(lease, lease.signal));
    } catch (error) {
      const isLoss = isOf(lease.signal, error);
      await releaseQuietly(lease, isLoss ? () => undefined : this.#backend.warn);
      throw isLoss && lease.loss !== null ? new LeaseLostError(lease.loss, { cause: error }) : error;
    }
    await lease.release();
    return result;
  }

  /**
   * The function, run while it holds the lock, which may be named after its arguments. Inside, `assertHeld` finds it.
   */
  locked<A extends unknown[], T>(
    lock: LockLike | ((...args: A) => LockLike),
    run: (...args: A) => T | PromiseLike<T>,
    options: AcquireOptions = {},
  ): (...args: A) => Promise<T> {
    return (...args) => {
      const named = typeof lock === "function" ? lock(...args) : lock;
      return this.using(named, options, () => run(...args));
    };
  }

  /** Who holds a lock and how many wait, at this moment. null: nobody does either. */
  async get(lock: LockLike): Promise<LockState | null> {
    return this.#backend.look(lockOf(lock));
  }

  /** The election of one leader for a job. */
  elect(job: LockLike, options: ElectionOptions = {}): Election {
    return new Election(this, job, options);
  }

  /**
   * Gives up every wait, releases every lease, and ends the client: its calls fail from now on, and leases that are
   * left have lost their locks. Takes at most 2 s; what could not be released by then runs out.
   */
  async shutdown(): Promise<void> {
    await this.#backend.close();
  }

  /** `shutdown`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.shutdown();
  }
}

function makeBackend(endpoints: string | readonly string[], options: ClientOptions): Backend {
  const warn =
    options.warn ??
    ((message: string) => {
      process.emitWarning(message, "LeaseholdWarning");
    });
  return new ThreadBackend(brokersOf(endpoints, options), options.releaseAtExit ?? true, warn);
}

function isSeveral(locks: LockLike | readonly LockLike[]): locks is readonly LockLike[] {
  return Array.isArray(locks);
}

/** Whether the error says that the signal was aborted. */
function isOf(signal: AbortSignal, error: unknown): boolean {
  return signal.aborted && (error === signal.reason || (error instanceof Error && error.name === "AbortError"));
}
