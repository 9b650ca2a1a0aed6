package dev.leasehold.error;

import java.time.Duration;

/** An exception for an internal error of the broker. */
public final class InternalException extends AcquireException {
    /**
     * Creates the exception.
     *
     * @param message for people
     * @param retryAfter time after which a retry may succeed, or null
     */
    public InternalException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
