package dev.leasehold;

/** Cause of a {@link Closure}. Later versions may add causes. */
public enum ClosureCause {
    /** The {@code lockDelay} of a lease that expired or was revoked. */
    LOCK_DELAY,
    /** The {@code atLeast} of a lease that has ended. */
    AT_LEAST,
    /** A command of an operator. */
    OPERATOR,
    /** A cause that is unknown to this version of the client. */
    OTHER
}
