// Election of one leader for a job, and observation of the current leader.

import { setTimeout as sleep } from "node:timers/promises";

import type { Client, ElectionOptions } from "./client.js";
import { StoreRecoveringError, UnavailableError } from "./errors.js";
import type { Lease } from "./lease.js";
import type { Holder } from "./messages.js";
import type { LockLike } from "./target.js";

/** Mean interval between the requests of an observer. */
const POLL_INTERVAL_MS = 1_000;

/** Options of a campaign and of an observer. */
export interface GiveUp {
  /** Cancels the campaign or the observation. */
  signal?: AbortSignal | undefined;
}

/**
 * The election of one leader. The leader is the holder of the lock with the name of the job; other candidates wait in
 * the queue of that lock.
 */
export class Election {
  readonly #client: Client;
  readonly #job: LockLike;
  readonly #options: ElectionOptions;

  /** For this package only. Use `Client.elect`. */
  constructor(client: Client, job: LockLike, options: ElectionOptions) {
    this.#client = client;
    this.#job = job;
    this.#options = options;
  }

  /** Waits without limit until this process is the leader. It leads while the lease is valid. */
  campaign({ signal }: GiveUp = {}): Promise<Lease> {
    return this.#client.acquire(this.#job, { ...this.#options, waitMs: Infinity, signal });
  }

  /** Returns an observer of the leader that is not a candidate: `for await (const leader of election.observe())`. */
  observe(options: GiveUp = {}): Observer {
    return new Observer(this.#client, this.#job, options.signal);
  }
}

/** An observer of the leader of a job. */
export class Observer {
  readonly #client: Client;
  readonly #job: LockLike;
  readonly #signal: AbortSignal | undefined;
  #notifiedLeaseId: string | null | undefined;

  /** For this package only. Use `Election.observe`. */
  constructor(client: Client, job: LockLike, signal: AbortSignal | undefined) {
    this.#client = client;
    this.#job = job;
    this.#signal = signal;
  }

  /**
   * Returns the leader at the first call, and then waits for the next change; null while the job has no leader.
   *
   * The lock is read about once a second, and again while no broker answers. A change is therefore reported late, and
   * two changes in quick succession perhaps as one. Never use the result in place of a lock.
   */
  async next(): Promise<Holder | null> {
    for (;;) {
      if (this.#notifiedLeaseId !== undefined) {
        await this.#pause();
      }
      const leader = await this.#readLeader();
      const leaseId = leader?.leaseId ?? null;
      if (leader !== undefined && leaseId !== this.#notifiedLeaseId) {
        this.#notifiedLeaseId = leaseId;
        return leader;
      }
      if (leader === undefined && this.#notifiedLeaseId === undefined) {
        await this.#pause();
      }
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Holder | null, never, undefined> {
    for (;;) {
      yield await this.next();
    }
  }

  /** Returns the current leader, null without a leader, or undefined while the store is unavailable or recovering. */
  async #readLeader(): Promise<Holder | null | undefined> {
    this.#signal?.throwIfAborted();
    try {
      const state = await this.#client.get(this.#job);
      return state?.holders[0] ?? null;
    } catch (error) {
      if (error instanceof UnavailableError || error instanceof StoreRecoveringError) {
        return undefined;
      }
      throw error;
    }
  }

  async #pause(): Promise<void> {
    await sleep(POLL_INTERVAL_MS * (0.75 + Math.random() / 2), undefined, { signal: this.#signal });
  }
}
