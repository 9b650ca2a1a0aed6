package dev.leasehold.error;

import java.time.Duration;

/** An exception for a store that has no memory for another holder or waiter. */
public final class StoreFullException extends AcquireException {
    /**
     * Creates the exception.
     *
     * @param message for people
     * @param retryAfter time after which a retry may succeed, or null
     */
    public StoreFullException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
