package dev.leasehold.error;

/** The credential has characters that no header may have. */
public final class InvalidCredentialException extends ConnectionException {
    /** The credential has characters that no header may have. */
    public InvalidCredentialException() {
        super("the credential is not printable ASCII");
    }
}
