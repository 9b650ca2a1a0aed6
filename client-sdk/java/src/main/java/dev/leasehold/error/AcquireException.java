package dev.leasehold.error;

import java.time.Duration;

/** An exception by which an acquire fails. */
public abstract class AcquireException extends LeaseholdException {
    AcquireException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
