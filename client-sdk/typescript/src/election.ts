// One leader for a job, and everybody else who wants to know who that is.

import { setTimeout as sleep } from "node:timers/promises";

import type { Client, ElectionOptions } from "./client.js";
import { StoreRecoveringError, UnavailableError } from "./errors.js";
import type { Lease } from "./lease.js";
import type { Holder } from "./order.js";
import type { LockLike } from "./target.js";

/** How often an observer looks. */
const LOOK_EVERY_MS = 1_000;

/** What a campaign and an observer take. */
export interface GiveUp {
  /** Gives it up. */
  signal?: AbortSignal | undefined;
}

/** The leader is whoever holds the lock of the job's name; the others wait for it in line. */
export class Election {
  readonly #client: Client;
  readonly #job: LockLike;
  readonly #options: ElectionOptions;

  /** For this package alone: an election comes from a client. */
  constructor(client: Client, job: LockLike, options: ElectionOptions) {
    this.#client = client;
    this.#job = job;
    this.#options = options;
  }

  /** Waits until this process leads, however long that takes. It leads as long as the lease is valid. */
  campaign({ signal }: GiveUp = {}): Promise<Lease> {
    return this.#client.acquire(this.#job, { ...this.#options, waitMs: Infinity, signal });
  }

  /** Watches who leads, without being a candidate: `for await (const leader of election.observe())`. */
  observe(options: GiveUp = {}): Observer {
    return new Observer(this.#client, this.#job, options.signal);
  }
}

/** Watches who leads. */
export class Observer {
  readonly #client: Client;
  readonly #job: LockLike;
  readonly #signal: AbortSignal | undefined;
  #told: string | null | undefined;

  /** For this package alone: an observer comes from an election. */
  constructor(client: Client, job: LockLike, signal: AbortSignal | undefined) {
    this.#client = client;
    this.#job = job;
    this.#signal = signal;
  }

  /**
   * The leader at the first call, then the next one when that changes; null while nobody leads.
   *
   * It looks about once a second, and again while no broker answers: a change is heard of late, and two quick ones
   * perhaps as one. Never act on it as if it were a lock.
   */
  async next(): Promise<Holder | null> {
    for (;;) {
      if (this.#told !== undefined) {
        await this.#pause();
      }
      const leader = await this.#look();
      const leaseId = leader?.leaseId ?? null;
      if (leader !== undefined && leaseId !== this.#told) {
        this.#told = leaseId;
        return leader;
      }
      if (leader === undefined && this.#told === undefined) {
        await this.#pause();
      }
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Holder | null, never, undefined> {
    for (;;) {
      yield await this.next();
    }
  }

  /** undefined: nobody can say. */
  async #look(): Promise<Holder | null | undefined> {
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
    await sleep(LOOK_EVERY_MS * (0.75 + Math.random() / 2), undefined, { signal: this.#signal });
  }
}
