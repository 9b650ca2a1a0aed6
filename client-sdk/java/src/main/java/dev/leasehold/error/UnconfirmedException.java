package dev.leasehold.error;

/**
 * An exception for a release that no broker confirmed before the lease expired or the client closed. The lease expires
 * if it was not released.
 */
public final class UnconfirmedException extends ReleaseException {
    /** Creates the exception. */
    public UnconfirmedException() {
        super("no broker has confirmed the release; the lease expires if it was not released");
    }
}
