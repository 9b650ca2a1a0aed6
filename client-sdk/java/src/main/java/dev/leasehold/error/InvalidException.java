package dev.leasehold.error;

import java.time.Duration;

/** An exception for a call with an invalid field. */
public final class InvalidException extends AcquireException {
    /**
     * Creates the exception.
     *
     * @param message for people
     * @param retryAfter time after which a retry may succeed, or null
     */
    public InvalidException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
