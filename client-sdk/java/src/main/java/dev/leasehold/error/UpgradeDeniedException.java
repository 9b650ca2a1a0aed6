package dev.leasehold.error;

import java.time.Duration;

/** An exception for an acquire in exclusive mode under a lease that holds the lock in shared mode. */
public final class UpgradeDeniedException extends AcquireException {
    /**
     * Creates the exception.
     *
     * @param message for people
     * @param retryAfter time after which a retry may succeed, or null
     */
    public UpgradeDeniedException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
