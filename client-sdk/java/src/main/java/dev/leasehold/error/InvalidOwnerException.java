package dev.leasehold.error;

/** The owner is empty or longer than 256 bytes. */
public final class InvalidOwnerException extends ConnectionException {
    /** The owner is empty or longer than 256 bytes. */
    public InvalidOwnerException() {
        super("the owner's name must have 1 to 256 bytes");
    }
}
