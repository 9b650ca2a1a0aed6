package dev.leasehold.error;

import java.time.Duration;

/** Why a lock was not taken. */
public abstract class AcquireException extends LeaseholdException {
    AcquireException(String message, Duration retryAfter) {
        super(message, retryAfter);
    }
}
