package dev.leasehold.error;

import java.time.Duration;

/** The store has lost data and grants nothing until every lease that it may have forgotten is over. */
public final class StoreRecoveringException extends AcquireException {
    /**
     * Why the lock was not taken.
     *
     * @param message for people
     * @param retryAfter when to try again, or null
     */
    public StoreRecoveringException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
