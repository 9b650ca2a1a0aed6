package dev.leasehold;

import java.io.Serializable;

/**
 * Cause of the end of a lease.
 *
 * @param reason reason, for decisions of the program
 * @param message message of the broker for people; often empty
 */
public record Loss(LostReason reason, String message) implements Serializable {
    /**
     * Creates a loss without a message of the broker.
     *
     * @param reason reason of the end
     */
    public Loss(LostReason reason) {
        this(reason, "");
    }

    @Override
    public String toString() {
        return message.isEmpty() ? reason.toString() : reason + ": " + message;
    }
}
