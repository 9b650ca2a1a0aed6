package dev.leasehold.error;

import java.time.Duration;

/** The lock's line is full. */
public final class QueueFullException extends AcquireException {
    /**
     * Why the lock was not taken.
     *
     * @param message for people
     * @param retryAfter when to try again, or null
     */
    public QueueFullException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
