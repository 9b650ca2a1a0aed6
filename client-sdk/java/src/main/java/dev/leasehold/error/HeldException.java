package dev.leasehold.error;

import dev.leasehold.Holder;
import java.time.Duration;
import java.util.List;

/** Somebody else holds the lock, and the call did not wait. */
public final class HeldException extends BusyException {
    /**
     * Who was in the way.
     *
     * @param message for people
     * @param holders some who hold the lock
     * @param queueLength how many wait
     * @param retryAfter the shortest time until a holder's lease runs out unless it is renewed, or null
     */
    public HeldException(String message, List<Holder> holders, int queueLength, Duration retryAfter) {
        super(message, holders, queueLength, retryAfter);
    }
}
