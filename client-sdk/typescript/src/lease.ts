// A lock that is held.

import { inspect } from "node:util";

import type { Loss, LostReason } from "./errors.js";
import { LeaseholdError, LeaseLostError, shownLoss } from "./errors.js";
import type { Grip } from "./grip.js";
import type { LockLike } from "./target.js";
import { isSameLock, lockOf, shownLock } from "./target.js";

/** What a lease has got; for this package alone. */
export const grips = new WeakMap<Lease, Grip>();

/**
 * A lock that is held, or several under one lease. A thread of the client sends heartbeats for it until it is released
 * or lost, or the process ends, also if nobody refers to it any more. Leave it by `await using` or `release`.
 */
export class Lease implements AsyncDisposable {
  /** Public identifier of the lease: safe to log and to show. */
  readonly leaseId: string;
  /** The locks, as namespace/name. */
  readonly locks: readonly string[];
  readonly #grip: Grip;
  readonly #controller = new AbortController();
  #lost: LeaseLostError | null = null;

  /** For this package alone: a lease comes from a client. */
  constructor(grip: Grip, onLost?: (lease: Lease) => void) {
    this.leaseId = grip.leaseId;
    this.locks = grip.tokens.map((token) => shownLock(token.lock));
    this.#grip = grip;
    grips.set(this, grip);
    grip.onLost((loss) => {
      this.#controller.abort(this.#error(loss));
      // Whoever asks whether the lock is held must not get an error of the hook.
      queueMicrotask(() => onLost?.(this));
    });
  }

  /**
   * Send it with every write to what the lock protects, and refuse smaller ones there. Of the first lock, if there are
   * several. Positive, and exact as a number.
   */
  get fencingToken(): number {
    return this.#grip.tokens[0]?.fencingToken ?? 0;
  }

  /** The fencing token of this lock, if the lease was taken for it. */
  fencingTokenOf(lock: LockLike): number | undefined {
    const wanted = lockOf(lock);
    return this.#grip.tokens.find((token) => isSameLock(token.lock, wanted))?.fencingToken;
  }

  /** Whether the lock can be trusted at this moment, by the clock. Once false it stays so. */
  isValid(): boolean {
    return this.loss === null;
  }

  /** Throws LeaseLostError if the lock is not held any more; for a step that must not be done without it. */
  check(): void {
    const { loss } = this;
    if (loss !== null) {
      throw this.#error(loss);
    }
  }

  /** For how many milliseconds the lock can be trusted if no heartbeat is confirmed from now on. */
  remainingMs(): number {
    return this.#grip.isGivenBack ? 0 : this.#grip.remainingMs();
  }

  /**
   * Aborted when the lock is lost, with a LeaseLostError as reason; not when it is released. It is told by the event
   * loop, and late if that stands still: before a step that must not be done without the lock ask `isValid`.
   */
  get signal(): AbortSignal {
    // Whoever asks for it after a stop finds it aborted.
    this.#grip.loss();
    return this.#controller.signal;
  }

  /** Why it is not held any more, if it is not, with what the broker said if that has been heard. */
  get loss(): Loss | null {
    return this.#grip.loss() ?? (this.#grip.isGivenBack ? { reason: "Released", message: "" } : null);
  }

  /** Why it is not held any more, if it is not. */
  get lostReason(): LostReason | null {
    return this.loss?.reason ?? null;
  }

  /**
   * Gives the lock back, and resolves when the broker has confirmed it. Safe to repeat. For a lease that was taken
   * `under` another one, and for that one, this gives back only what the call itself took.
   *
   * Rejects with LeaseLostError if the lock was lost before: what it guarded may have overlapped with another
   * holder's work. With UnconfirmedError if no broker could be reached meanwhile.
   */
  async release(): Promise<void> {
    const loss = this.#grip.loss();
    const released = this.#grip.giveBack();
    if (released === null) {
      return;
    }
    try {
      await released;
    } catch (error) {
      if (loss === null && !(error instanceof LeaseLostError)) {
        throw error;
      }
      throw this.#error(loss ?? (error as LeaseLostError).loss);
    }
    if (loss !== null) {
      throw this.#error(loss);
    }
  }

  /** `release`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }

  /** What may be shown of it. */
  toJSON(): Record<string, unknown> {
    const { leaseId, locks, fencingToken, lostReason } = this;
    return { leaseId, locks, fencingToken, lostReason };
  }

  [inspect.custom](): string {
    const { loss } = this;
    const state = loss === null ? `remainingMs=${this.remainingMs().toFixed(0)}` : `lost: ${shownLoss(loss)}`;
    return `Lease ${this.leaseId} [${this.locks.join(", ")}] fencingToken=${String(this.fencingToken)} ${state}`;
  }

  /** One for all who are told. */
  #error(loss: Loss): LeaseLostError {
    this.#lost ??= new LeaseLostError(loss);
    return this.#lost;
  }
}

/** Gives back what a failed block held; the block's own error is told, and not this one. */
export async function releaseQuietly(lease: Lease, warn: (message: string) => void): Promise<void> {
  try {
    await lease.release();
  } catch (error) {
    if (!(error instanceof LeaseholdError)) {
      throw error;
    }
    warn(`lease ${lease.leaseId}, after another error: ${error.message}`);
  }
}
