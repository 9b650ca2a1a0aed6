package dev.leasehold.error;

import java.time.Duration;

/** The credential is missing or not accepted. */
public final class UnauthenticatedException extends AcquireException {
    /**
     * Why the lock was not taken.
     *
     * @param message for people
     * @param retryAfter when to try again, or null
     */
    public UnauthenticatedException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
