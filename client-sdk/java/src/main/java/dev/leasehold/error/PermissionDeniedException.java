package dev.leasehold.error;

import java.time.Duration;

/** The credential does not allow that. */
public final class PermissionDeniedException extends AcquireException {
    /**
     * Why the lock was not taken.
     *
     * @param message for people
     * @param retryAfter when to try again, or null
     */
    public PermissionDeniedException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
