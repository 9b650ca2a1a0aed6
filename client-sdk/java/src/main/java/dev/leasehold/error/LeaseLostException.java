package dev.leasehold.error;

import dev.leasehold.Loss;
import dev.leasehold.LostReason;

/**
 * An exception for a lost lease. The work that the lease guarded may overlap with the work of another holder, unless
 * fencing tokens separate them. Thrown by an acquire, it means that the lease that it was to be added to has ended.
 */
public final class LeaseLostException extends AcquireException {
    private final Loss loss;

    /**
     * Creates the exception.
     *
     * @param loss cause of the end of the lease
     */
    public LeaseLostException(Loss loss) {
        super("the lock was lost: " + loss, null);
        this.loss = loss;
    }

    /**
     * Returns the cause of the end, with the message of the broker.
     *
     * @return the first cause, if several were noticed
     */
    public Loss loss() {
        return loss;
    }

    /**
     * Returns the reason of the end.
     *
     * @return the first reason, if several were noticed
     */
    public LostReason reason() {
        return loss.reason();
    }
}
