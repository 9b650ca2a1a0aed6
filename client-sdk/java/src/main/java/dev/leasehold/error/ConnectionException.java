package dev.leasehold.error;

/** Why a client could not be made or connected. */
public abstract class ConnectionException extends LeaseholdException {
    ConnectionException(String message) {
        super(message, null);
    }
}
