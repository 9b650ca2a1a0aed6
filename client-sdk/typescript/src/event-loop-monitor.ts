// Warning about a blocked event loop, which would report the loss of a lease too late.

/** A held lease. Its TTL bounds the tolerated lag of the event loop. */
interface MonitoredLease {
  readonly ttlMs: number;
}

/** Number of checks in half a heartbeat interval. */
const CHECKS_PER_HALF_INTERVAL = 4;
const CHECK_INTERVAL_MIN_MS = 25;
/** Minimum time between two warnings. */
const WARN_INTERVAL_MS = 60_000;

/** A monitor of the event loop, which runs while a lease is held. */
export class EventLoopMonitor {
  private readonly leases = new Set<MonitoredLease>();
  private timer: NodeJS.Timeout | null = null;
  private intervalMs = Infinity;
  private warnedAt = -Infinity;

  constructor(private readonly warn: (message: string) => void) {}

  /** Adds a held lease. */
  add(lease: MonitoredLease): void {
    this.leases.add(lease);
    if (checkIntervalMs(lease.ttlMs) < this.intervalMs) {
      this.schedule(lease.ttlMs);
    }
  }

  /** Removes a lease that has ended. */
  remove(lease: MonitoredLease): void {
    this.leases.delete(lease);
  }

  private schedule(ttlMs: number): void {
    if (this.timer !== null) {
      clearTimeout(this.timer);
    }
    this.intervalMs = checkIntervalMs(ttlMs);
    const dueAt = performance.now() + this.intervalMs;
    this.timer = setTimeout(() => {
      this.check(performance.now() - dueAt, ttlMs / 6);
    }, this.intervalMs).unref();
  }

  private check(delayMs: number, toleratedMs: number): void {
    this.timer = null;
    this.intervalMs = Infinity;
    if (this.leases.size === 0) {
      return;
    }
    let shortestMs = Infinity;
    for (const { ttlMs } of this.leases) {
      shortestMs = Math.min(shortestMs, ttlMs);
    }
    this.schedule(shortestMs);
    if (delayMs > toleratedMs && performance.now() > this.warnedAt + WARN_INTERVAL_MS) {
      this.warnedAt = performance.now();
      this.warn(
        `the event loop was blocked for ${(delayMs / 1000).toFixed(1)} s while a lock was held: the lock was renewed, ` +
          "but the report of its loss would have been delayed by this time",
      );
    }
  }
}

function checkIntervalMs(ttlMs: number): number {
  // A heartbeat is due every third of the ttl.
  return Math.max(ttlMs / 6 / CHECKS_PER_HALF_INTERVAL, CHECK_INTERVAL_MIN_MS);
}
