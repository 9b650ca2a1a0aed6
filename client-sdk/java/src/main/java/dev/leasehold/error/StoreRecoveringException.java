package dev.leasehold.error;

import java.time.Duration;

/**
 * An exception for a store that has lost data: it grants nothing until all leases that it may have lost have expired.
 */
public final class StoreRecoveringException extends AcquireException {
    /**
     * Creates the exception.
     *
     * @param message for people
     * @param retryAfter time after which a retry may succeed, or null
     */
    public StoreRecoveringException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
