// Clock for the validity of leases, which also runs while the machine is suspended.

import { closeSync, existsSync, openSync, readSync } from "node:fs";

/** Resolution of `/proc/uptime` in milliseconds. The file contains the start of the current step. */
const RESOLUTION_MS = 10;
const UPTIME_FILE = "/proc/uptime";

/** A clock in milliseconds since a fixed moment in the past, which is equal in all threads that share the clock. */
export interface Clock {
  /** Returns a time that is never later than the present; for send times. */
  now(): number;
  /** Returns a time that is never earlier than the present; for deadline checks. */
  latest(): number;
}

/** Memory that threads share to agree on the time; null if the operating system has one clock for all threads. */
export type SharedClock = SharedArrayBuffer | null;

/** Creates the shared state of a clock. */
export function createSharedClock(): SharedClock {
  return process.platform === "linux" && existsSync(UPTIME_FILE) ? null : new SharedArrayBuffer(32);
}

/** Returns the clock of all threads that share this state. */
export function clockOf(shared: SharedClock): Clock {
  return shared === null ? new UptimeClock() : new SuspendAwareClock(shared);
}

/**
 * CLOCK_BOOTTIME, read from `/proc/uptime` because Node has no call for it. The file is opened again for each reading.
 * The monotonic clock measures the time within a step; only a suspend increases its distance to CLOCK_BOOTTIME.
 */
class UptimeClock implements Clock {
  private readonly buffer = Buffer.alloc(64);
  /** Lower bound of the lead over the monotonic clock, in milliseconds; less than a step below the true lead. */
  private leadMs = -Infinity;

  now(): number {
    this.sample();
    return performance.now() + this.leadMs;
  }

  latest(): number {
    const uptimeMs = this.sample();
    return (uptimeMs ?? performance.now() + this.leadMs) + RESOLUTION_MS;
  }

  private sample(): number | undefined {
    const uptimeMs = this.readUptime();
    if (uptimeMs !== undefined) {
      // The monotonic clock is read second, so that a pause between both reads cannot make the lead too large.
      this.leadMs = Math.max(this.leadMs, uptimeMs - performance.now());
    }
    return uptimeMs;
  }

  private readUptime(): number | undefined {
    let file: number;
    try {
      file = openSync(UPTIME_FILE, "r");
    } catch (error) {
      // Without a free file descriptor the last known lead is used, so that a lease still expires and its check does
      // not
      // throw.
      if (this.leadMs > -Infinity) {
        return undefined;
      }
      throw error;
    }
    try {
      const length = readSync(file, this.buffer, 0, this.buffer.length, 0);
      return parseFloat(this.buffer.toString("latin1", 0, length)) * 1000;
    } finally {
      closeSync(file);
    }
  }
}

/**
 * A clock for systems without a clock that runs during a suspend. Between two readings it advances by the larger step
 * of the monotonic clock and the wall clock. It never goes back and is never slower than the monotonic clock, whatever
 * the wall clock is set to. A wall clock that is set ahead ends the validity early.
 */
export class SuspendAwareClock implements Clock {
  private readonly spinLock: Int32Array;
  /** Last readings of the monotonic clock and the wall clock, and the time since the first reading. */
  private readonly lastReadings: Float64Array;

  constructor(
    shared: SharedArrayBuffer,
    private readonly monotonic = (): number => Number(process.hrtime.bigint()) / 1e6,
    private readonly wall = (): number => Date.now(),
  ) {
    this.spinLock = new Int32Array(shared, 0, 1);
    this.lastReadings = new Float64Array(shared, 8, 3);
  }

  now(): number {
    // The spin lock is held for a few instructions only, so spinning is shorter than sleeping.
    while (Atomics.compareExchange(this.spinLock, 0, 0, 1) !== 0);
    try {
      return this.advance(this.monotonic(), this.wall());
    } finally {
      Atomics.store(this.spinLock, 0, 0);
    }
  }

  latest(): number {
    return this.now();
  }

  private advance(monotonic: number, wall: number): number {
    const [lastMonotonic = 0, lastWall = 0, total = 0] = this.lastReadings;
    const step = total === 0 ? 1 : Math.max(monotonic - lastMonotonic, wall - lastWall, 0);
    this.lastReadings.set([monotonic, wall, total + step]);
    return total + step;
  }
}
