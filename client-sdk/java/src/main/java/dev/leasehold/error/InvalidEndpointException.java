package dev.leasehold.error;

/** An endpoint is none. */
public final class InvalidEndpointException extends ConnectionException {
    /**
     * What is wrong with it.
     *
     * @param endpoint as it was given
     * @param why for people
     */
    public InvalidEndpointException(String endpoint, String why) {
        super("endpoint \"" + endpoint + "\": " + why + "; expected a URL as in http://127.0.0.1:7070");
    }
}
