package dev.leasehold.error;

/** No broker has confirmed a release while the lease could have lived; it has run out by now, or soon will. */
public final class UnconfirmedException extends ReleaseException {
    /** Nobody has confirmed it. */
    public UnconfirmedException() {
        super("no broker has confirmed the release; the lock runs out by itself");
    }
}
