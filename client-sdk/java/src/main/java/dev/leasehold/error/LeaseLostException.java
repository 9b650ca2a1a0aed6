package dev.leasehold.error;

import dev.leasehold.Loss;
import dev.leasehold.LostReason;

/**
 * The lock was lost: what it guarded may overlap with the work of somebody else, unless a fencing token keeps them
 * apart. From an acquire: the lease that it was to be under is over.
 */
public final class LeaseLostException extends AcquireException {
    private final Loss loss;

    /**
     * A loss.
     *
     * @param loss why
     */
    public LeaseLostException(Loss loss) {
        super("the lock was lost: " + loss, null);
        this.loss = loss;
    }

    /**
     * Why, with what the broker said.
     *
     * @return the first reason
     */
    public Loss loss() {
        return loss;
    }

    /**
     * Why.
     *
     * @return the first reason
     */
    public LostReason reason() {
        return loss.reason();
    }
}
