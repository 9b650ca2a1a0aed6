package dev.leasehold.error;

/** An exception by which creating or connecting a client fails. */
public abstract class ConnectionException extends LeaseholdException {
    ConnectionException(String message) {
        super(message, null);
    }
}
