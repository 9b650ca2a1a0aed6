package dev.leasehold.error;

import java.time.Duration;

/** An exception for a lock on which another limit or mode is in use. */
public final class LimitMismatchException extends AcquireException {
    /**
     * Creates the exception.
     *
     * @param message for people
     * @param retryAfter time after which a retry may succeed, or null
     */
    public LimitMismatchException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
