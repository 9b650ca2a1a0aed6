package dev.leasehold.error;

/**
 * An exception by which a release fails. The lease is no longer valid in any case. See also {@link LeaseLostException}.
 */
public abstract class ReleaseException extends LeaseholdException {
    ReleaseException(String message) {
        super(message, null);
    }
}
