package dev.leasehold.error;

import java.time.Duration;

/** An exception for a lock whose queue is full. */
public final class QueueFullException extends AcquireException {
    /**
     * Creates the exception.
     *
     * @param message for people
     * @param retryAfter time after which a retry may succeed, or null
     */
    public QueueFullException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
