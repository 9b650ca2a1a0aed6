package dev.leasehold.error;

/** An exception for a credential with characters that a header must not contain, or in a file that cannot be read. */
public final class InvalidCredentialException extends ConnectionException {
    /** Creates the exception for a credential that is not printable ASCII. */
    public InvalidCredentialException() {
        super("the credential is not printable ASCII");
    }

    /**
     * Creates the exception for a file that cannot be read.
     *
     * @param reason for people
     */
    public InvalidCredentialException(String reason) {
        super("the credential cannot be read: " + reason);
    }
}
