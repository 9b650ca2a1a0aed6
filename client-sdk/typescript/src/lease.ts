// Leases as the program sees them: validity, fencing tokens, release.

import { inspect } from "node:util";

import type { Loss, LostReason } from "./errors.js";
import { formatLoss, LeaseholdError, LeaseLostError } from "./errors.js";
import type { LeaseHandle } from "./lease-handle.js";
import type { LockLike } from "./target.js";
import { formatLock, isSameLock, lockOf } from "./target.js";

/** Handles of leases, for this package only. */
export const leaseHandles = new WeakMap<Lease, LeaseHandle>();

/**
 * A held lock, or several locks under one lease. The worker thread of the client renews the lease until it is released
 * or lost or the process ends, even if the object is no longer referenced. End it with `await using` or `release`.
 */
export class Lease implements AsyncDisposable {
  /** Public identifier of the lease, which may be logged and displayed. */
  readonly leaseId: string;
  /** Names of the locks, as `namespace/name`. */
  readonly locks: readonly string[];
  readonly #handle: LeaseHandle;
  readonly #controller = new AbortController();
  #lostError: LeaseLostError | null = null;

  /** For this package only. Use `Client.acquire`. */
  constructor(handle: LeaseHandle, onLost?: (lease: Lease) => void) {
    this.leaseId = handle.leaseId;
    this.locks = handle.grants.map((grant) => formatLock(grant.lock));
    this.#handle = handle;
    leaseHandles.set(this, handle);
    handle.setLostHook((loss) => {
      this.#controller.abort(this.#error(loss));
      // An error of the hook must not reach the caller that checks the validity.
      queueMicrotask(() => onLost?.(this));
    });
  }

  /**
   * Fencing token of the lock, or of the first lock if there are several. Positive and below 2^53. Send it with every
   * write to the protected resource, and reject smaller tokens there.
   */
  get fencingToken(): number {
    return this.#handle.grants[0]?.fencingToken ?? 0;
  }

  /** Returns the fencing token of this lock, or undefined if the call did not acquire it. */
  fencingTokenOf(lock: LockLike): number | undefined {
    const lockName = lockOf(lock);
    return this.#handle.grants.find((grant) => isSameLock(grant.lock, lockName))?.fencingToken;
  }

  /** Returns true if the lease is valid now, by the client's clock. Once false, it stays false. */
  isValid(): boolean {
    return this.loss === null;
  }

  /**
   * Throws LeaseLostError if the lock was lost or released. Call it before each step that must not run without the
   * lock.
   */
  check(): void {
    const { loss } = this;
    if (loss !== null) {
      throw this.#error(loss);
    }
  }

  /** Returns the time in milliseconds for which the lock stays valid if no further heartbeat is confirmed. */
  remainingMs(): number {
    return this.#handle.isReleased ? 0 : this.#handle.remainingMs();
  }

  /**
   * Signal that is aborted when the lock is lost, with a LeaseLostError as reason, and not when the lock is released.
   * The event loop aborts the signal, so a blocked event loop delays it. Before each step that must not run without the
   * lock, check `isValid`.
   */
  get signal(): AbortSignal {
    // Checks the clock, so that the signal is aborted when it is read after a pause of the process.
    this.#handle.loss();
    return this.#controller.signal;
  }

  /**
   * Reason for which the lease ended, with the message of the broker if it was received; null while the lock is held.
   */
  get loss(): Loss | null {
    return this.#handle.loss() ?? (this.#handle.isReleased ? { reason: "Released", message: "" } : null);
  }

  /** Reason for which the lease ended; null while the lock is held. */
  get lostReason(): LostReason | null {
    return this.loss?.reason ?? null;
  }

  /**
   * Releases the lock, and resolves when the broker has confirmed the release. Later calls have no effect. If several
   * acquires share a lease with `under`, each release covers only what its own call acquired.
   *
   * Rejects with LeaseLostError if the lock was lost before: the protected work may have overlapped with the work of
   * another holder. Rejects with UnconfirmedError if no broker confirmed the release before the lease expired, and with
   * RefusedError if a broker rejected it.
   */
  async release(): Promise<void> {
    const loss = this.#handle.loss();
    const pendingRelease = this.#handle.release();
    if (pendingRelease === null) {
      return;
    }
    try {
      await pendingRelease;
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

  /** Calls `release`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }

  /** Returns the public fields of the lease, without secrets. */
  toJSON(): Record<string, unknown> {
    const { leaseId, locks, fencingToken, lostReason } = this;
    return { leaseId, locks, fencingToken, lostReason };
  }

  [inspect.custom](): string {
    const { loss } = this;
    const state = loss === null ? `remainingMs=${this.remainingMs().toFixed(0)}` : `lost: ${formatLoss(loss)}`;
    return `Lease ${this.leaseId} [${this.locks.join(", ")}] fencingToken=${String(this.fencingToken)} ${state}`;
  }

  /** Returns the error of the loss, the same object for all callers. */
  #error(loss: Loss): LeaseLostError {
    this.#lostError ??= new LeaseLostError(loss);
    return this.#lostError;
  }
}

/** Releases a lease after its block has failed. An error of the release is passed to `warn`. */
export async function releaseQuietly(lease: Lease, warn: (message: string) => void): Promise<void> {
  try {
    await lease.release();
  } catch (error) {
    if (!(error instanceof LeaseholdError)) {
      throw error;
    }
    warn(`release of lease ${lease.leaseId} failed after another error: ${error.message}`);
  }
}
