package dev.leasehold.error;

import dev.leasehold.Holder;
import java.time.Duration;
import java.util.List;

/**
 * The wait timed out. The call has left the queue, unless another attempt of it is still queued or has been granted the
 * lock (STILL_QUEUED).
 */
public final class WaitTimeoutException extends BusyException {
    /**
     * Who was in the way.
     *
     * @param message for people
     * @param holders some who hold the lock
     * @param queueLength how many wait
     * @param retryAfter the shortest time until a holder's lease runs out unless it is renewed, or null
     */
    public WaitTimeoutException(String message, List<Holder> holders, int queueLength, Duration retryAfter) {
        super(message, holders, queueLength, retryAfter);
    }
}
