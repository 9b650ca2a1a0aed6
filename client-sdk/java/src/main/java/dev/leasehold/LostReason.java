package dev.leasehold;

/** Reason for which a lease has ended. Later versions may add reasons. */
public enum LostReason {
    /**
     * No renewal was confirmed in time: the network, the broker or its store could not be reached, or this process was
     * suspended.
     */
    EXPIRED("no renewal was confirmed in time"),
    /** An operator has revoked the lease. */
    REVOKED("revoked"),
    /** The store has lost its record of the lease. */
    STORE_LOST("the store lost the lease"),
    /** The lease has held the lock for its whole {@code maxHold}. */
    MAX_HOLD("the lease has reached its max_hold"),
    /** The lease was released, by this client or with a copy of the lease. */
    RELEASED("released"),
    /** Another client has attached the lease, with a copy of it. */
    MOVED("moved to another client"),
    /** The credential of the client has expired. */
    CREDENTIAL_EXPIRED("the credential expired"),
    /** The client was closed. */
    CLOSED("the client is shut down"),
    /** A reason that is unknown to this version of the client. */
    OTHER("lost");

    private final String text;

    LostReason(String text) {
        this.text = text;
    }

    @Override
    public String toString() {
        return text;
    }
}
