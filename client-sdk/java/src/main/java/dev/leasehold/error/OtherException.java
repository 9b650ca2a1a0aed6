package dev.leasehold.error;

import java.time.Duration;

/** Anything else that a broker says, perhaps a newer one than this client. */
public final class OtherException extends AcquireException {
    /**
     * Why the lock was not taken.
     *
     * @param message for people
     * @param retryAfter when to try again, or null
     */
    public OtherException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
