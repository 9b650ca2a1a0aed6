package dev.leasehold.error;

import java.time.Duration;

/** A quota of the broker is used up. */
public final class QuotaExceededException extends AcquireException {
    /**
     * Why the lock was not taken.
     *
     * @param message for people
     * @param retryAfter when to try again, or null
     */
    public QuotaExceededException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
