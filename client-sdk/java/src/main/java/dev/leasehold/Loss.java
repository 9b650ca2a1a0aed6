package dev.leasehold;

import java.io.Serializable;

/**
 * Why a lease is over, with what the broker said.
 *
 * @param reason branch on this
 * @param message for people; often empty
 */
public record Loss(LostReason reason, String message) implements Serializable {
    /**
     * A loss without a word of the broker.
     *
     * @param reason why
     */
    public Loss(LostReason reason) {
        this(reason, "");
    }

    @Override
    public String toString() {
        return message.isEmpty() ? reason.toString() : reason + ": " + message;
    }
}
