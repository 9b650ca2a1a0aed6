package dev.leasehold.internal;

/** Where acquires go: a backend, or whoever keeps the lease that they are under. Nothing here blocks. */
public interface Caller {
    /** Takes locks, and keeps their lease. */
    void acquire(Ask ask);

    /** The caller of an acquire is gone. What it got is given back. */
    void cancel(String requestId);
}
