// Validity of a lease, in memory that the program shares with the worker thread that renews the lease.

import type { Clock } from "./clock.js";
import type { LostReason } from "./errors.js";

// The index is the representation in shared memory. It is used within one process only.
const LOST_REASONS: readonly LostReason[] = [
  "Expired",
  "Revoked",
  "StoreLost",
  "MaxHold",
  "Released",
  "Moved",
  "CredentialExpired",
  "Closed",
  "Other",
];

/** Returns the safety margin before the end of a validity, in which the guarded work can stop. */
export function safetyMarginMs(ttlMs: number): number {
  return Math.min(Math.max(ttlMs / 10, 500), ttlMs / 4);
}

/** The validity of a lease. Latches: once ended, it never starts again, in any thread. */
export class LeaseValidity {
  /** End of the validity, in whole milliseconds of the clock; 0: it has ended. */
  private readonly validUntil: BigInt64Array;
  /** Reason for the end, as an index in `LOST_REASONS` counted from 1; 0: no reason recorded. */
  private readonly reasonIndex: Int32Array;

  constructor(
    readonly sharedMemory: SharedArrayBuffer,
    private readonly clock: Clock,
  ) {
    this.validUntil = new BigInt64Array(sharedMemory, 0, 1);
    this.reasonIndex = new Int32Array(sharedMemory, 8, 1);
  }

  /** Starts the validity, before the lease is returned to the caller. */
  static start(validUntil: number, ttlMs: number, clock: Clock): LeaseValidity {
    const validity = new LeaseValidity(new SharedArrayBuffer(16), clock);
    Atomics.store(validity.validUntil, 0, storedValidUntil(validUntil, ttlMs));
    return validity;
  }

  /**
   * Extends the validity after a confirmed heartbeat. Returns false if the validity had ended before; then it stays
   * ended.
   */
  extend(validUntil: number, ttlMs: number): boolean {
    const extended = storedValidUntil(validUntil, ttlMs);
    for (;;) {
      const current = this.readValidUntil(this.clock.latest());
      if (current === 0n) {
        return false;
      }
      // Fails if another thread found the validity ended since the clock was read.
      if (Atomics.compareExchange(this.validUntil, 0, current, extended > current ? extended : current) === current) {
        return true;
      }
    }
  }

  /** Ends the validity. Only the first reason is stored. */
  end(reason: LostReason): void {
    // The reason is stored first, so that a thread that reads the end also reads the reason.
    Atomics.compareExchange(this.reasonIndex, 0, 0, LOST_REASONS.indexOf(reason) + 1);
    Atomics.store(this.validUntil, 0, 0n);
  }

  /** Returns true if the lease is valid now. Once false, it stays false. */
  isValid(latest = this.clock.latest()): boolean {
    return this.readValidUntil(latest) !== 0n;
  }

  /** Returns the time for which the lease stays valid if no further heartbeat is confirmed. */
  remainingMs(): number {
    const latest = this.clock.latest();
    const current = this.readValidUntil(latest);
    return current === 0n ? 0 : Number(current) - latest;
  }

  /** Returns the reason for which the validity ended, or null while the lease is valid. */
  lostReason(): LostReason | null {
    if (this.isValid()) {
      return null;
    }
    Atomics.compareExchange(this.reasonIndex, 0, 0, 1);
    return LOST_REASONS[Atomics.load(this.reasonIndex, 0) - 1] ?? "Other";
  }

  /** Returns the end of the validity. Stores and returns 0 if the end has passed. */
  private readValidUntil(latest: number): bigint {
    for (;;) {
      const current = Atomics.load(this.validUntil, 0);
      if (current === 0n || latest < Number(current)) {
        return current;
      }
      if (Atomics.compareExchange(this.validUntil, 0, current, 0n) === current) {
        return 0n;
      }
    }
  }
}

function storedValidUntil(validUntil: number, ttlMs: number): bigint {
  // 0 means ended. 1 is the earliest end that can be stored.
  return BigInt(Math.max(Math.floor(validUntil - safetyMarginMs(ttlMs)), 1));
}
