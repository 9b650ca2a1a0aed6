package dev.leasehold.error;

/** The client is shut down. */
public final class ClosedException extends AcquireException {
    /** The client is shut down. */
    public ClosedException() {
        super("the client is shut down", null);
    }
}
