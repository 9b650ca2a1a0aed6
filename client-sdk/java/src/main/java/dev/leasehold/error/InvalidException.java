package dev.leasehold.error;

import java.time.Duration;

/** A field of the call is not legal. */
public final class InvalidException extends AcquireException {
    /**
     * Why the lock was not taken.
     *
     * @param message for people
     * @param retryAfter when to try again, or null
     */
    public InvalidException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
