package dev.leasehold.internal;

import java.time.Instant;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Where no clock runs through a suspend: the monotonic clock, and whatever the wall clock gains on it. It never goes
 * back, whatever the wall clock is set to; a wall clock that is set ahead ends validity early.
 */
final class LargerElapsed {
    /** What the wall clock may differ without having gained: else the noise of many readings would add up. */
    static final long NOISE = Times.millis(5);

    private final ReentrantLock lock = new ReentrantLock();
    private final long begun;
    private long lead;
    private long gained;

    LargerElapsed() {
        this(System.nanoTime(), wall());
    }

    LargerElapsed(long monotonic, long wall) {
        begun = monotonic;
        lead = wall - monotonic;
    }

    /** Nanoseconds since the beginning. */
    long advance() {
        lock.lock();
        try {
            return advance(System.nanoTime(), wall());
        } finally {
            lock.unlock();
        }
    }

    long advance(long monotonic, long wall) {
        long change = wall - monotonic - lead;
        if (Math.abs(change) > NOISE) {
            lead += change;
            gained += Math.max(0, change);
        }
        return monotonic - begun + gained;
    }

    private static long wall() {
        Instant now = Instant.now();
        return TimeUnit.SECONDS.toNanos(now.getEpochSecond()) + now.getNano();
    }
}
