package dev.leasehold.error;

/** An exception for an owner that is empty or longer than 256 bytes. */
public final class InvalidOwnerException extends ConnectionException {
    /** Creates the exception. */
    public InvalidOwnerException() {
        super("the owner's name must have 1 to 256 bytes");
    }
}
