package dev.leasehold.error;

/** An exception for a client without an endpoint. */
public final class NoEndpointException extends ConnectionException {
    /** Creates the exception. */
    public NoEndpointException() {
        super("no endpoint: give at least one, as in http://127.0.0.1:7070");
    }
}
