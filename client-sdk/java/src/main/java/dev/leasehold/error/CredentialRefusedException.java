package dev.leasehold.error;

/** The brokers answer, and accept no call with this credential, or without one. */
public final class CredentialRefusedException extends ConnectionException {
    /**
     * What they said.
     *
     * @param why for people
     */
    public CredentialRefusedException(String why) {
        super("the credential is missing or not accepted: " + why);
    }
}
