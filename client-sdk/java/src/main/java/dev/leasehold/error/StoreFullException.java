package dev.leasehold.error;

import java.time.Duration;

/** The broker's store has no memory for another holder or waiter. */
public final class StoreFullException extends AcquireException {
    /**
     * Why the lock was not taken.
     *
     * @param message for people
     * @param retryAfter when to try again, or null
     */
    public StoreFullException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
