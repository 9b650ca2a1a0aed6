// The clock that validity is counted on: it runs on while the machine is suspended.

import { closeSync, existsSync, openSync, readSync } from "node:fs";

/** `/proc/uptime` has steps of this many milliseconds, and shows the one that has begun. */
const STEP_MS = 10;
const UPTIME = "/proc/uptime";

/** A clock, in milliseconds since some moment in the past; the same for all threads that share it. */
export interface Clock {
  /** Never later than this moment: to note when something was sent. */
  now(): number;
  /** Never earlier than this moment: to ask whether a time has passed. */
  latest(): number;
}

/** What threads must share to agree on the time; null where the machine has one clock for all. */
export type SharedClock = SharedArrayBuffer | null;

/** Begins a clock. */
export function shareClock(): SharedClock {
  return process.platform === "linux" && existsSync(UPTIME) ? null : new SharedArrayBuffer(32);
}

/** The clock of all threads that have this. */
export function clockOf(shared: SharedClock): Clock {
  return shared === null ? new Uptime() : new Larger(shared);
}

/**
 * CLOCK_BOOTTIME as Linux shows it in a file, which is opened anew for each reading: Node has no call for it. What
 * lies between the steps comes from the monotonic clock, which only a suspend leaves further behind.
 */
class Uptime implements Clock {
  private readonly buffer = Buffer.alloc(64);
  /** At least how far it is ahead of the monotonic clock, and never a whole step less than that. */
  private ahead = -Infinity;

  now(): number {
    this.look();
    return performance.now() + this.ahead;
  }

  latest(): number {
    const shown = this.look();
    return (shown ?? performance.now() + this.ahead) + STEP_MS;
  }

  private look(): number | undefined {
    const shown = this.read();
    if (shown !== undefined) {
      // The other clock is read second: a pause between the two cannot make the distance too large.
      this.ahead = Math.max(this.ahead, shown - performance.now());
    }
    return shown;
  }

  private read(): number | undefined {
    let file: number;
    try {
      file = openSync(UPTIME, "r");
    } catch (error) {
      // A process without a file descriptor left must not trust for ever, nor fail where it asks.
      if (this.ahead > -Infinity) {
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
 * Where no clock runs through a suspend: from reading to reading the larger step of the monotonic and the wall
 * clock. It never goes back, and never slower than the monotonic clock, whatever the wall clock is set to; a wall
 * clock that is set ahead ends validity early.
 */
export class Larger implements Clock {
  private readonly locked: Int32Array;
  /** The last readings of the monotonic and of the wall clock, and the time since the first. */
  private readonly last: Float64Array;

  constructor(
    shared: SharedArrayBuffer,
    private readonly monotonic = (): number => Number(process.hrtime.bigint()) / 1e6,
    private readonly wall = (): number => Date.now(),
  ) {
    this.locked = new Int32Array(shared, 0, 1);
    this.last = new Float64Array(shared, 8, 3);
  }

  now(): number {
    // Held for a few instructions, so that spinning is shorter than sleeping.
    while (Atomics.compareExchange(this.locked, 0, 0, 1) !== 0);
    try {
      return this.advance(this.monotonic(), this.wall());
    } finally {
      Atomics.store(this.locked, 0, 0);
    }
  }

  latest(): number {
    return this.now();
  }

  private advance(monotonic: number, wall: number): number {
    const [lastMonotonic = 0, lastWall = 0, total = 0] = this.last;
    const step = total === 0 ? 1 : Math.max(monotonic - lastMonotonic, wall - lastWall, 0);
    this.last.set([monotonic, wall, total + step]);
    return total + step;
  }
}
