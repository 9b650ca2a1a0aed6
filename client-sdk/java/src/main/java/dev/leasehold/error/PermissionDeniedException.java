package dev.leasehold.error;

import java.time.Duration;

/** An exception for a caller that is not authorized to make the call. */
public final class PermissionDeniedException extends AcquireException {
    /**
     * Creates the exception.
     *
     * @param message for people
     * @param retryAfter time after which a retry may succeed, or null
     */
    public PermissionDeniedException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
