package dev.leasehold.internal;

/** Sender of acquires: a backend, or the session of the lease that the acquires add to. No method blocks. */
public interface AcquireSender {
    /** Starts an acquire. The resulting lease is renewed until its release. */
    void acquire(AcquireCommand command);

    /** Cancels an acquire. A lock that is granted nevertheless is released. */
    void cancel(String requestId);
}
