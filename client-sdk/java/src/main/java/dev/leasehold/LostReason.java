package dev.leasehold;

/** Why a lease is over. New reasons may come. */
public enum LostReason {
    /**
     * No renewal was confirmed in time: the network, the broker or its store could not be reached, or this process
     * stood still.
     */
    EXPIRED("no renewal was confirmed in time"),
    /** An operator took it away. */
    REVOKED("revoked"),
    /** The store does not know it any more. */
    STORE_LOST("the store lost it"),
    /** It has been held for all of its {@code maxHold}. */
    MAX_HOLD("held for all of its max_hold"),
    /** It was given back, here or with a copy of the lease. */
    RELEASED("released"),
    /** Somebody took it over with a copy of the lease. */
    MOVED("moved to another client"),
    /** The client's credential ran out. */
    CREDENTIAL_EXPIRED("the credential ran out"),
    /** The client was shut down. */
    CLOSED("the client is shut down"),
    /** A reason that this client does not know. */
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
