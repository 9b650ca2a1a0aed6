package dev.leasehold.error;

/** No endpoint was given. */
public final class NoEndpointException extends ConnectionException {
    /** No endpoint was given. */
    public NoEndpointException() {
        super("no endpoint: give at least one, as in http://127.0.0.1:7070");
    }
}
