package dev.leasehold.error;

import java.time.Duration;

/** An exception for a caller that has reached a quota of the broker. */
public final class QuotaExceededException extends AcquireException {
    /**
     * Creates the exception.
     *
     * @param message for people
     * @param retryAfter time after which a retry may succeed, or null
     */
    public QuotaExceededException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
