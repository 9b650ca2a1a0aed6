package dev.leasehold.error;

import java.time.Duration;

/** Shared to exclusive under one lease. */
public final class UpgradeDeniedException extends AcquireException {
    /**
     * Why the lock was not taken.
     *
     * @param message for people
     * @param retryAfter when to try again, or null
     */
    public UpgradeDeniedException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
