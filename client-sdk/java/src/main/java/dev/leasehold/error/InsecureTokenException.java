package dev.leasehold.error;

/** A bearer token would be sent unencrypted to another machine. */
public final class InsecureTokenException extends ConnectionException {
    /**
     * Names the endpoint.
     *
     * @param endpoint as it was given
     */
    public InsecureTokenException(String endpoint) {
        super("endpoint \"" + endpoint + "\": the bearer token would cross the network unencrypted; use https, or "
                + "allowInsecureToken where the network itself is trusted");
    }
}
