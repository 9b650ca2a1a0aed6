package dev.leasehold.error;

import java.time.Duration;

/** An exception for a credential that is missing or not accepted. */
public final class UnauthenticatedException extends AcquireException {
    /**
     * Creates the exception.
     *
     * @param message for people
     * @param retryAfter time after which a retry may succeed, or null
     */
    public UnauthenticatedException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
