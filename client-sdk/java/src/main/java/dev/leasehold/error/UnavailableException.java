package dev.leasehold.error;

import java.time.Duration;

/**
 * No broker, or no store behind it, could answer in time. The call was repeated until then, and was given up: if it did
 * take the lock, that runs out by itself.
 */
public final class UnavailableException extends AcquireException {
    /**
     * Why the lock was not taken.
     *
     * @param message for people
     * @param retryAfter when to try again, or null
     */
    public UnavailableException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
