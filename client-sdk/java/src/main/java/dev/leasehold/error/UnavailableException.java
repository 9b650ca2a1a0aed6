package dev.leasehold.error;

import java.time.Duration;

/**
 * An exception for an acquire that no broker could complete in time. The client has retried the call until then and has
 * stopped retrying. If the lock was granted nevertheless, its lease expires.
 */
public final class UnavailableException extends AcquireException {
    /**
     * Creates the exception.
     *
     * @param message for people
     * @param retryAfter time after which a retry may succeed, or null
     */
    public UnavailableException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
