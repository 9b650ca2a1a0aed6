package dev.leasehold.error;

import dev.leasehold.Closure;
import dev.leasehold.Holder;
import java.time.Duration;
import java.util.List;

/** An exception for an acquire without waiting whose lock is held by another caller, or closed. */
public final class HeldException extends ContentionException {
    /**
     * Creates the exception.
     *
     * @param message for people
     * @param holders some of the holders of the lock
     * @param queueLength number of waiters in the queue of the lock
     * @param closure closure of the lock, or null
     * @param retryAfter the shortest time after which the lease of a holder expires unless it is renewed, or null
     */
    public HeldException(String message, List<Holder> holders, int queueLength, Closure closure, Duration retryAfter) {
        super(message, holders, queueLength, closure, retryAfter);
    }
}
