package dev.leasehold.error;

import java.time.Duration;

/** An exception for an operation that the store of the broker does not support. */
public final class UnsupportedByStoreException extends AcquireException {
    /**
     * Creates the exception.
     *
     * @param message for people
     * @param retryAfter time after which a retry may succeed, or null
     */
    public UnsupportedByStoreException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
