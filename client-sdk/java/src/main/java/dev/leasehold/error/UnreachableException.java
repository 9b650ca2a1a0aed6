package dev.leasehold.error;

/** No broker answers. */
public final class UnreachableException extends ConnectionException {
    /**
     * Why none does.
     *
     * @param why for people
     */
    public UnreachableException(String why) {
        super("no broker answers: " + why);
    }
}
