package dev.leasehold.error;

/** Why a release did not go as hoped. The lease is gone in any case; see also {@link LeaseLostException}. */
public abstract class ReleaseException extends LeaseholdException {
    ReleaseException(String message) {
        super(message, null);
    }
}
