package dev.leasehold.error;

import java.time.Duration;

/** The broker's store cannot do that. */
public final class UnsupportedByStoreException extends AcquireException {
    /**
     * Why the lock was not taken.
     *
     * @param message for people
     * @param retryAfter when to try again, or null
     */
    public UnsupportedByStoreException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
