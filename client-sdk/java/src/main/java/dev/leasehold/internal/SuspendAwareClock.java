package dev.leasehold.internal;

import java.time.Instant;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;

/**
 * A clock for platforms without a clock that runs during a suspend: the monotonic clock plus the time by which the wall
 * clock has advanced more. It never goes back, whatever the wall clock is set to. Setting the wall clock ahead ends
 * validity early.
 */
final class SuspendAwareClock {
    /** Difference of the wall clock that is ignored. Otherwise the noise of many readings would add up. */
    static final long NOISE = Durations.millisToNanos(5);

    private final ReentrantLock lock = new ReentrantLock();
    private final long startedAt;
    private long wallClockLead;
    private long suspendedNanos;

    SuspendAwareClock() {
        this(System.nanoTime(), wallClock());
    }

    SuspendAwareClock(long monotonic, long wall) {
        startedAt = monotonic;
        wallClockLead = wall - monotonic;
    }

    /** Returns the nanoseconds since the creation of the clock. */
    long advance() {
        lock.lock();
        try {
            return advance(System.nanoTime(), wallClock());
        } finally {
            lock.unlock();
        }
    }

    long advance(long monotonic, long wall) {
        long change = wall - monotonic - wallClockLead;
        if (Math.abs(change) > NOISE) {
            wallClockLead += change;
            suspendedNanos += Math.max(0, change);
        }
        return monotonic - startedAt + suspendedNanos;
    }

    private static long wallClock() {
        Instant now = Instant.now();
        return TimeUnit.SECONDS.toNanos(now.getEpochSecond()) + now.getNano();
    }
}
