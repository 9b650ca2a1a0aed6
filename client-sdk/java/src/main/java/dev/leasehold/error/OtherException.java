package dev.leasehold.error;

import java.time.Duration;

/** An exception for a reason that is unknown to this version of the client, for example of a newer broker. */
public final class OtherException extends AcquireException {
    /**
     * Creates the exception.
     *
     * @param message for people
     * @param retryAfter time after which a retry may succeed, or null
     */
    public OtherException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
