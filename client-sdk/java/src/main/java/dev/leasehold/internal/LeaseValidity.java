package dev.leasehold.internal;

import dev.leasehold.Loss;
import dev.leasehold.LostReason;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.ReentrantLock;

/**
 * The validity of a lease, shared between its lease handles and the client thread. Once it has ended, it never starts
 * again. Thread-safe.
 */
public final class LeaseValidity {
    private final ReentrantLock lock = new ReentrantLock();
    private volatile long deadline;
    private volatile Loss loss;
    private List<Runnable> callbacks = new ArrayList<>();

    public LeaseValidity(long validUntil, long ttl) {
        deadline = validUntil - safetyMargin(ttl);
    }

    /**
     * Returns the safety margin: the time before the end of the confirmed period at which the holder regards the lease
     * as lost, so that its work can stop in time.
     */
    static long safetyMargin(long ttl) {
        return Math.min(Math.max(ttl / 10, Durations.millisToNanos(500)), ttl / 4);
    }

    /**
     * Extends the validity to a newly confirmed time. Returns false if the validity has ended before: then it stays
     * ended.
     */
    boolean extend(long validUntil, long ttl) {
        lock.lock();
        try {
            if (loss() != null) {
                return false;
            }
            deadline = Math.max(deadline, validUntil - safetyMargin(ttl));
            return true;
        } finally {
            lock.unlock();
        }
    }

    /** Ends the validity. If it is called several times, only the first cause counts. */
    public void end(Loss cause) {
        List<Runnable> pending;
        lock.lock();
        try {
            if (loss != null) {
                return;
            }
            loss = cause;
            pending = callbacks;
            callbacks = List.of();
        } finally {
            lock.unlock();
        }
        pending.forEach(Runnable::run);
    }

    /** Returns the cause of the end if the validity has ended by now, or null. */
    public Loss loss() {
        // After the end the clock need not be read.
        return loss == null ? loss(Clock.now()) : loss;
    }

    /** Returns the cause of the end if the validity has ended at time {@code now}, or null. */
    Loss loss(long now) {
        if (loss == null && now >= deadline) {
            lock.lock();
            try {
                // The lock keeps other threads from extending the validity between this check and its end.
                if (loss == null && now >= deadline) {
                    end(new Loss(LostReason.EXPIRED));
                }
            } finally {
                lock.unlock();
            }
        }
        return loss;
    }

    /** Returns the remaining validity in nanoseconds if no further heartbeat is confirmed. */
    public long remaining() {
        long now = Clock.now();
        long validUntil = deadline;
        return loss(now) == null ? Math.max(0, validUntil - now) : 0;
    }

    /**
     * Registers a callback that is called once at the end of the validity, in the thread that notices the end:
     * immediately if the validity has ended already. The callback must not block.
     */
    public void onEnd(Runnable callback) {
        lock.lock();
        try {
            if (loss == null) {
                callbacks.add(callback);
                return;
            }
        } finally {
            lock.unlock();
        }
        callback.run();
    }

    /** Removes a callback. A call of the callback may be in progress. */
    public void removeOnEnd(Runnable callback) {
        lock.lock();
        try {
            if (loss == null) {
                callbacks.remove(callback);
            }
        } finally {
            lock.unlock();
        }
    }
}
