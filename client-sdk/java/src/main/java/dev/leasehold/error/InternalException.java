package dev.leasehold.error;

import java.time.Duration;

/** A fault of the broker. */
public final class InternalException extends AcquireException {
    /**
     * Why the lock was not taken.
     *
     * @param message for people
     * @param retryAfter when to try again, or null
     */
    public InternalException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
