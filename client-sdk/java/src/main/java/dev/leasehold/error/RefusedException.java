package dev.leasehold.error;

/** An exception for a release that the broker has rejected. */
public final class RefusedException extends ReleaseException {
    /**
     * Creates the exception.
     *
     * @param message message of the broker, for people
     */
    public RefusedException(String message) {
        super(message);
    }
}
