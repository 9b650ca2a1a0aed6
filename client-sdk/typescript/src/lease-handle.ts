// Handle of the locks that one acquire was granted: their validity and their release.

import type { Backend } from "./backend.js";
import type { Loss } from "./errors.js";
import type { GrantedLease, LockGrant } from "./messages.js";
import { recordHoldTime } from "./telemetry.js";
import type { LeaseValidity } from "./validity.js";

/** The locks of one acquire. Several acquires can share a lease, each with its own handle. */
export class LeaseHandle {
  private recordedLoss: Loss | null = null;
  private lostHook: ((loss: Loss) => void) | null = null;
  private released = false;
  private readonly grantedAt = performance.now();

  readonly leaseId: string;
  /** Locks that the call acquired or re-entered, with their fencing tokens. */
  readonly grants: readonly LockGrant[];
  /** TTL at the grant. The lag of the event loop is compared with it. */
  readonly ttlMs: number;

  constructor(
    lease: Omit<GrantedLease, "validity">,
    private readonly requestId: string,
    private readonly validity: LeaseValidity,
    readonly backend: Backend,
  ) {
    this.leaseId = lease.leaseId;
    this.grants = lease.grants;
    this.ttlMs = lease.ttlMs;
  }

  /** True if the program has released the locks. */
  get isReleased(): boolean {
    return this.released;
  }

  /** Checks the validity by the clock. Returns the reason for which the lease ended, or null while it is valid. */
  loss(): Loss | null {
    if (this.recordedLoss === null) {
      const reason = this.validity.lostReason();
      if (reason !== null) {
        this.recordLoss({ reason, message: "" });
      }
    }
    return this.recordedLoss;
  }

  /** Returns the time for which the lease stays valid if no further heartbeat is confirmed. */
  remainingMs(): number {
    return this.loss() === null ? this.validity.remainingMs() : 0;
  }

  /** Records the end of the lease and calls the hook. Only the first reason is stored. */
  recordLoss(loss: Loss): void {
    if (this.recordedLoss === null) {
      this.recordedLoss = loss;
      if (!this.released) {
        this.lostHook?.(loss);
      }
    }
  }

  /** Sets the hook that is called once when the lease is lost, unless it was released before. */
  setLostHook(lostHook: (loss: Loss) => void): void {
    this.lostHook = lostHook;
  }

  /** Releases the locks at the first call. Returns null at later calls. */
  release(): Promise<void> | null {
    if (this.released) {
      return null;
    }
    recordHoldTime(this.grantedAt, this.recordedLoss !== null);
    this.released = true;
    const locks = this.grants.map((grant) => grant.lock);
    return this.backend.release(this, { requestId: this.requestId, locks });
  }
}
