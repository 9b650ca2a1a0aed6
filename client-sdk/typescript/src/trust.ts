// How long a lease may be trusted, in memory that its holders share with the thread that keeps it alive.

import type { Clock } from "./clock.js";
import type { LostReason } from "./errors.js";

// Their order is what threads of one program say to each other, and nothing else.
const REASONS: readonly LostReason[] = [
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

/** How much earlier than the validity ends a holder gives up, so that its work can stop in time. */
export function marginMs(ttlMs: number): number {
  return Math.min(Math.max(ttlMs / 10, 500), ttlMs / 4);
}

/** Latches: once over, it never begins again, whichever thread noticed first. */
export class Trust {
  /** When it ends, in whole milliseconds of the clock; 0: it is over. */
  private readonly until: BigInt64Array;
  /** Why it is over, as a place in REASONS counted from 1; 0: not known. */
  private readonly why: Int32Array;

  constructor(
    readonly shared: SharedArrayBuffer,
    private readonly clock: Clock,
  ) {
    this.until = new BigInt64Array(shared, 0, 1);
    this.why = new Int32Array(shared, 8, 1);
  }

  /** Begins, before anybody has it. */
  static begin(validUntil: number, ttlMs: number, clock: Clock): Trust {
    const trust = new Trust(new SharedArrayBuffer(16), clock);
    Atomics.store(trust.until, 0, end(validUntil, ttlMs));
    return trust;
  }

  /** Validity was confirmed. False if trust was over before that was heard: then it stays over. */
  extend(validUntil: number, ttlMs: number): boolean {
    const wanted = end(validUntil, ttlMs);
    for (;;) {
      const until = this.live(this.clock.latest());
      if (until === 0n) {
        return false;
      }
      // Not extended if somebody found it over since the clock was read.
      if (Atomics.compareExchange(this.until, 0, until, wanted > until ? wanted : until) === until) {
        return true;
      }
    }
  }

  /** Ends it. Only the first reason stays. */
  end(reason: LostReason): void {
    // First: whoever sees the end finds the reason, too.
    Atomics.compareExchange(this.why, 0, 0, REASONS.indexOf(reason) + 1);
    Atomics.store(this.until, 0, 0n);
  }

  /** Whether it can be trusted at this moment. Once false it stays so. */
  isValid(latest = this.clock.latest()): boolean {
    return this.live(latest) !== 0n;
  }

  /** How long it can be trusted if nothing is confirmed from now on. */
  remainingMs(): number {
    const latest = this.clock.latest();
    const until = this.live(latest);
    return until === 0n ? 0 : Number(until) - latest;
  }

  /** Why it is over, if it is. */
  lostReason(): LostReason | null {
    if (this.isValid()) {
      return null;
    }
    Atomics.compareExchange(this.why, 0, 0, 1);
    return REASONS[Atomics.load(this.why, 0) - 1] ?? "Other";
  }

  /** When it ends; 0 once that has passed, and from then on. */
  private live(latest: number): bigint {
    for (;;) {
      const until = Atomics.load(this.until, 0);
      if (until === 0n || latest < Number(until)) {
        return until;
      }
      if (Atomics.compareExchange(this.until, 0, until, 0n) === until) {
        return 0n;
      }
    }
  }
}

function end(validUntil: number, ttlMs: number): bigint {
  // 0 would say that it was over before: 1 is as long ago.
  return BigInt(Math.max(Math.floor(validUntil - marginMs(ttlMs)), 1));
}
