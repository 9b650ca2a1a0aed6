package dev.leasehold.error;

/** An exception for brokers that answer, but accept no call with this credential, or without one. */
public final class CredentialRefusedException extends ConnectionException {
    /**
     * Creates the exception.
     *
     * @param reasons messages of the brokers, for people
     */
    public CredentialRefusedException(String reasons) {
        super("the credential is missing or not accepted: " + reasons);
    }
}
