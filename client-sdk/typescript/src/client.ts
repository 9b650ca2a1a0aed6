// The client and its calls. A process needs one client.

import { setTimeout as sleep } from "node:timers/promises";

import { AcquireCall } from "./acquire.js";
import type { Backend } from "./backend.js";
import { Election } from "./election.js";
import { LeaseLostError } from "./errors.js";
import { runWithLease } from "./held-leases.js";
import type { Lease } from "./lease.js";
import { releaseQuietly } from "./lease.js";
import type { LockState } from "./messages.js";
import type { AcquireOptions } from "./options.js";
import type { ClientOptions } from "./settings.js";
import { connectionSettingsOf, ownerOf } from "./settings.js";
import type { LockLike } from "./target.js";
import { checkedLimit, lockOf } from "./target.js";
import { ThreadBackend } from "./thread.js";

/** Options of a call that does not wait in the queue. */
export interface TryOptions extends Omit<AcquireOptions, "waitMs"> {
  /** Maximum number of attempts. Default: 1. Waiting in the queue with `acquire` is fair and faster. */
  attempts?: number | undefined;
  /** Pause between attempts in milliseconds, plus or minus a quarter. */
  everyMs?: number | undefined;
}

/** Options of an election. */
export interface ElectionOptions {
  /** See `AcquireOptions.ttlMs`. */
  ttlMs?: number | undefined;
  /** See `AcquireOptions.reason`. */
  reason?: string | undefined;
}

/** A function that runs while a lock is held. Pass the signal on: it is aborted when the lock is lost. */
export type Work<T> = (lease: Lease, signal: AbortSignal) => T | PromiseLike<T>;

/**
 * A client of the brokers. A worker thread renews its leases, so that the program cannot delay heartbeats. The client
 * keeps the process alive only while a call waits for a response.
 */
export class Client implements AsyncDisposable {
  /** Name of this process, which operators and other callers see as the owner of a held lock. */
  readonly owner: string;
  readonly #backend: Backend;

  /**
   * Creates a client and checks its settings. It connects at the first call or `connect`.
   *
   * endpoints: URLs, in a list or separated by commas, as in `http://a:7070,http://b:7070`. The client uses one
   * endpoint at a time, and moves to the next one if the broker fails.
   */
  constructor(endpoints: string | readonly string[], options?: ClientOptions);
  /** @internal */
  // eslint-disable-next-line @typescript-eslint/unified-signatures -- the second one is internal
  constructor(endpoints: string | readonly string[], options: ClientOptions, backend: Backend);
  constructor(endpoints: string | readonly string[], options: ClientOptions = {}, backend?: Backend) {
    this.owner = ownerOf(options);
    this.#backend = backend ?? createBackend(endpoints, options);
  }

  /** Connects now instead of at the first call. Rejects with UnreachableError or CredentialRefusedError. */
  async connect(): Promise<this> {
    await this.#backend.connect();
    return this;
  }

  /**
   * Acquires a lock, waiting in its queue.
   *
   * Rejects with WaitTimeoutError if the lock was held for the whole of `waitMs`, and with HeldError if `waitMs` is 0.
   * Rejects with UnavailableError up to 5 s later if no broker responded. Rejects with the reason of `signal` when the
   * signal is aborted: the call leaves the queue, and a lock that is granted at that moment is released.
   */
  async acquire(lock: LockLike, options: AcquireOptions = {}): Promise<Lease> {
    return new AcquireCall(this.#backend, this.owner, [lock], options).acquire();
  }

  /**
   * Acquires 2-16 different locks, all or none under one lease, in an order that cannot deadlock. Waits and rejects as
   * `acquire` does.
   */
  async acquireAll(locks: readonly LockLike[], options: AcquireOptions = {}): Promise<Lease> {
    return new AcquireCall(this.#backend, this.owner, locks, options).acquire();
  }

  /** Acquires a lock if it is free. Resolves to null if another caller holds it, or it is closed. */
  async tryAcquire(lock: LockLike, options: TryOptions = {}): Promise<Lease | null> {
    return this.tryAcquireAll([lock], options);
  }

  /** Acquires several locks if all are free. Resolves to null if another caller holds one of them, or one is closed. */
  async tryAcquireAll(locks: readonly LockLike[], options: TryOptions = {}): Promise<Lease | null> {
    const { attempts = 1, everyMs = 0, signal } = options;
    const acquire = new AcquireCall(this.#backend, this.owner, locks, options);
    for (let attempt = 1; ; attempt += 1) {
      const lease = await acquire.tryAcquire();
      if (lease !== null || attempt >= attempts) {
        return lease;
      }
      await sleep(everyMs * (0.75 + Math.random() / 2), undefined, { signal });
    }
  }

  /** Acquires one or several locks, runs `work`, releases the locks, and resolves to the result of `work`. */
  using<T>(locks: LockLike | readonly LockLike[], work: Work<T>): Promise<T>;
  /**
   * Acquires one or several locks, runs `work`, releases the locks, and resolves to the result of `work`.
   *
   * Rejects as `acquire` does, and with the error of the work. Rejects with LeaseLostError if the lock was lost and the
   * work ended without an error or with an error caused by its signal. `using` always waits for the end of the work,
   * which only the signal can stop.
   */
  using<T>(locks: LockLike | readonly LockLike[], options: AcquireOptions, work: Work<T>): Promise<T>;
  async using<T>(
    locks: LockLike | readonly LockLike[],
    optionsOrWork: AcquireOptions | Work<T>,
    maybeWork?: Work<T>,
  ): Promise<T> {
    const [options, work] = typeof optionsOrWork === "function" ? [{}, optionsOrWork] : [optionsOrWork, maybeWork];
    if (work === undefined) {
      throw new TypeError("no work: pass a function as the last argument");
    }
    const lockList = isLockList(locks) ? locks : [locks];
    const lease = await new AcquireCall(this.#backend, this.owner, lockList, options).acquire();
    let result: T;
    try {
      result = await runWithLease(lease, () => work(lease, lease.signal));
    } catch (error) {
      const isLoss = isCausedBy(lease.signal, error);
      await releaseQuietly(lease, isLoss ? () => undefined : this.#backend.warn);
      throw isLoss && lease.loss !== null ? new LeaseLostError(lease.loss, { cause: error }) : error;
    }
    await lease.release();
    return result;
  }

  /**
   * Returns a function that runs `run` while it holds the lock. `lock` may compute the lock from the arguments. Inside,
   * `assertHeld` returns the lease.
   */
  locked<A extends unknown[], T>(
    lock: LockLike | ((...args: A) => LockLike),
    run: (...args: A) => T | PromiseLike<T>,
    options: AcquireOptions = {},
  ): (...args: A) => Promise<T> {
    return (...args) => {
      const resolvedLock = typeof lock === "function" ? lock(...args) : lock;
      return this.using(resolvedLock, options, () => run(...args));
    };
  }

  /**
   * Returns the current state of a lock, or null if it has neither holders nor waiters, is not closed, and has no set
   * limit.
   */
  async get(lock: LockLike): Promise<LockState | null> {
    return this.#backend.getLockState(lockOf(lock));
  }

  /**
   * Sets the limit of a semaphore, 1-1000, or removes the set limit if `limit` is null. Of `lock`, only the name and
   * the namespace are used. Resolves to the limit that was in use or, after a removal, to the limit that had been set;
   * null if there was none.
   *
   * Until a set limit is removed, callers follow it whatever limit they send, also while the lock is idle. A lower limit
   * revokes no lease: new grants wait until enough permits are released, and waiters that need more permits are rejected
   * with LimitMismatchError. A removed limit stays in use until the lock is idle.
   *
   * Where the broker has access rules, the caller needs the verb `set_limit` or `admin`; without it the call rejects
   * with PermissionDeniedError. Rejects with LimitMismatchError if the lock is in use as an exclusive or shared lock, and
   * with InvalidError if the limit is out of range. Rejects with UnavailableError if no broker responded: the limit may
   * have been set, and the call is safe to repeat.
   */
  async setLimit(lock: LockLike, limit: number | null): Promise<number | null> {
    return this.#backend.setLimit(lockOf(lock), limit === null ? null : checkedLimit(limit));
  }

  /** Returns the election of one leader for a job. */
  elect(job: LockLike, options: ElectionOptions = {}): Election {
    return new Election(this, job, options);
  }

  /**
   * Cancels every wait, releases every lease, and closes the client. Later calls fail with ClosedError, and remaining
   * leases have lost their locks. Takes at most 2 s; leases that could not be released by then expire.
   */
  async shutdown(): Promise<void> {
    await this.#backend.close();
  }

  /** Calls `shutdown`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.shutdown();
  }
}

function createBackend(endpoints: string | readonly string[], options: ClientOptions): Backend {
  const warn =
    options.warn ??
    ((message: string) => {
      process.emitWarning(message, "LeaseholdWarning");
    });
  return new ThreadBackend(connectionSettingsOf(endpoints, options), options.releaseAtExit ?? true, warn);
}

function isLockList(locks: LockLike | readonly LockLike[]): locks is readonly LockLike[] {
  return Array.isArray(locks);
}

/** Returns true if the error was caused by the abort of the signal. */
function isCausedBy(signal: AbortSignal, error: unknown): boolean {
  return signal.aborted && (error === signal.reason || (error instanceof Error && error.name === "AbortError"));
}
