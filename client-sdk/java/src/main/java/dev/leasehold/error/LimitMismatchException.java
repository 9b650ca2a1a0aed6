package dev.leasehold.error;

import java.time.Duration;

/** Another limit or mode is in use on this lock. */
public final class LimitMismatchException extends AcquireException {
    /**
     * Why the lock was not taken.
     *
     * @param message for people
     * @param retryAfter when to try again, or null
     */
    public LimitMismatchException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
