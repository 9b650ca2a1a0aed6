package dev.leasehold.internal;

import dev.leasehold.Loss;
import dev.leasehold.LostReason;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.ReentrantLock;

/**
 * How long a lease may be trusted, shared between its holders and the thread that keeps it alive. Latches: once over,
 * it never begins again, whoever noticed first.
 */
public final class Trust {
    private final ReentrantLock lock = new ReentrantLock();
    private volatile long until;
    private volatile Loss loss;
    private List<Runnable> hooks = new ArrayList<>();

    public Trust(long validUntil, long ttl) {
        until = validUntil - margin(ttl);
    }

    /** How much earlier than the validity ends a holder gives up, so that its work can stop in time. */
    static long margin(long ttl) {
        return Math.min(Math.max(ttl / 10, Times.millis(500)), ttl / 4);
    }

    /** Validity was confirmed. False if trust was over before that was heard: then it stays over. */
    boolean extend(long validUntil, long ttl) {
        lock.lock();
        try {
            if (loss() != null) {
                return false;
            }
            until = Math.max(until, validUntil - margin(ttl));
            return true;
        } finally {
            lock.unlock();
        }
    }

    /** Ends it. Only the first reason stays. */
    public void end(Loss why) {
        List<Runnable> told;
        lock.lock();
        try {
            if (loss != null) {
                return;
            }
            loss = why;
            told = hooks;
            hooks = List.of();
        } finally {
            lock.unlock();
        }
        told.forEach(Runnable::run);
    }

    /** Why it is over at this moment, or null. */
    public Loss loss() {
        // Once it is over the time is of no interest.
        return loss == null ? loss(Clock.now()) : loss;
    }

    /** Why it is over at that moment, or null. */
    Loss loss(long now) {
        if (loss == null && now >= until) {
            lock.lock();
            try {
                // Nobody extends it between this look and the end.
                if (loss == null && now >= until) {
                    end(new Loss(LostReason.EXPIRED));
                }
            } finally {
                lock.unlock();
            }
        }
        return loss;
    }

    /** How long it can be trusted if nothing is confirmed from now on. */
    public long remaining() {
        long now = Clock.now();
        long end = until;
        return loss(now) == null ? Math.max(0, end - now) : 0;
    }

    /** Calls the hook once it is over, in whatever thread notices; at once if it is. The hook must not block. */
    public void onEnd(Runnable hook) {
        lock.lock();
        try {
            if (loss == null) {
                hooks.add(hook);
                return;
            }
        } finally {
            lock.unlock();
        }
        hook.run();
    }

    /** The hook is not to be called any more. It may be under way. */
    public void offEnd(Runnable hook) {
        lock.lock();
        try {
            if (loss == null) {
                hooks.remove(hook);
            }
        } finally {
            lock.unlock();
        }
    }
}
