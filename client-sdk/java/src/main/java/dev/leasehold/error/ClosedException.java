package dev.leasehold.error;

/** An exception for a call after the client was closed, or one that the close cancelled. */
public final class ClosedException extends AcquireException {
    /** Creates the exception. */
    public ClosedException() {
        super("the client is shut down", null);
    }
}
