package dev.leasehold.error;

/** The broker would not release. */
public final class RefusedException extends ReleaseException {
    /**
     * What the broker said.
     *
     * @param message for people
     */
    public RefusedException(String message) {
        super(message);
    }
}
