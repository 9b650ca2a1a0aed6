package dev.leasehold.error;

/** An exception for a client that cannot reach any broker. */
public final class UnreachableException extends ConnectionException {
    /**
     * Creates the exception.
     *
     * @param reasons causes for each endpoint, for people
     */
    public UnreachableException(String reasons) {
        super("no broker answers: " + reasons);
    }
}
