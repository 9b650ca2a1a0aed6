// Says when the event loop stands still for so long that a loss would be heard of too late.

/** What is held: how soon a loss is to be heard of depends on this. */
interface Watched {
  readonly ttlMs: number;
}

/** Looks so often within half a heartbeat. */
const LOOKS = 4;
const PAUSE_MIN_MS = 25;
/** At most one warning in this time. */
const WARN_EVERY_MS = 60_000;

/** Watches while anything is held. */
export class LagWatch {
  private readonly held = new Set<Watched>();
  private timer: NodeJS.Timeout | null = null;
  private pauseMs = Infinity;
  private warnedAt = -Infinity;

  constructor(private readonly warn: (message: string) => void) {}

  /** This is held now. */
  watch(one: Watched): void {
    this.held.add(one);
    if (pauseFor(one.ttlMs) < this.pauseMs) {
      this.begin(one.ttlMs);
    }
  }

  /** This is not held any more. */
  forget(one: Watched): void {
    this.held.delete(one);
  }

  private begin(ttlMs: number): void {
    if (this.timer !== null) {
      clearTimeout(this.timer);
    }
    this.pauseMs = pauseFor(ttlMs);
    const dueAt = performance.now() + this.pauseMs;
    this.timer = setTimeout(() => {
      this.look(performance.now() - dueAt, ttlMs / 6);
    }, this.pauseMs).unref();
  }

  private look(lateMs: number, limitMs: number): void {
    this.timer = null;
    this.pauseMs = Infinity;
    if (this.held.size === 0) {
      return;
    }
    let shortestMs = Infinity;
    for (const { ttlMs } of this.held) {
      shortestMs = Math.min(shortestMs, ttlMs);
    }
    this.begin(shortestMs);
    if (lateMs > limitMs && performance.now() > this.warnedAt + WARN_EVERY_MS) {
      this.warnedAt = performance.now();
      this.warn(
        `the event loop stood still for ${(lateMs / 1000).toFixed(1)} s while a lock was held: the lock is renewed ` +
          "all the same, but its loss would have been heard of that late",
      );
    }
  }
}

function pauseFor(ttlMs: number): number {
  // A heartbeat is due every third of the ttl.
  return Math.max(ttlMs / 6 / LOOKS, PAUSE_MIN_MS);
}
