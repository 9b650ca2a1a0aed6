package dev.leasehold.error;

/** An exception for an invalid endpoint. */
public final class InvalidEndpointException extends ConnectionException {
    /**
     * Creates the exception.
     *
     * @param endpoint the endpoint as the program named it
     * @param reason for people
     */
    public InvalidEndpointException(String endpoint, String reason) {
        super("endpoint \"" + endpoint + "\": " + reason + "; expected a URL as in http://127.0.0.1:7070");
    }
}
