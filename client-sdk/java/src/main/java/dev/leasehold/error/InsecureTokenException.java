package dev.leasehold.error;

/** An exception for an endpoint to which the bearer token would be sent unencrypted to another machine. */
public final class InsecureTokenException extends ConnectionException {
    /**
     * Creates the exception.
     *
     * @param endpoint the endpoint as the program named it
     */
    public InsecureTokenException(String endpoint) {
        super("endpoint \"" + endpoint + "\": the bearer token would be sent unencrypted to another machine; "
                + "use https, or set allowInsecureToken on a trusted network");
    }
}
