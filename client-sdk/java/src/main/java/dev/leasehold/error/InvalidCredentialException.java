package dev.leasehold.error;

/** The credential has characters that no header may have, or its file cannot be read. */
public final class InvalidCredentialException extends ConnectionException {
    /** The credential has characters that no header may have. */
    public InvalidCredentialException() {
        super("the credential is not printable ASCII");
    }

    /**
     * Its file cannot be read.
     *
     * @param why for people
     */
    public InvalidCredentialException(String why) {
        super("the credential cannot be read: " + why);
    }
}
