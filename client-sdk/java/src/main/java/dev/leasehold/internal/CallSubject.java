package dev.leasehold.internal;

/**
 * Subject of a call on a lease stream: its kind, and the request or lease that the call is about. No record, because
 * the generated toString of a record would expose the request id, which is a secret.
 */
final class CallSubject {
    /** Kind of a call. */
    enum Kind {
        ACQUIRE,
        ATTACH,
        RELEASE,
        CREDENTIAL,
        DETACH
    }

    final Kind kind;
    /** Request id or lease id, depending on the kind. */
    final String key;
    /** Number of the partial release; 0: the whole lease. */
    final long releaseNumber;

    private CallSubject(Kind kind, String key, long releaseNumber) {
        this.kind = kind;
        this.key = key;
        this.releaseNumber = releaseNumber;
    }

    static CallSubject acquire(String requestId) {
        return new CallSubject(Kind.ACQUIRE, requestId, 0);
    }

    static CallSubject attach(String leaseId) {
        return new CallSubject(Kind.ATTACH, leaseId, 0);
    }

    static CallSubject release(String leaseId, long releaseNumber) {
        return new CallSubject(Kind.RELEASE, leaseId, releaseNumber);
    }

    static CallSubject credential() {
        return new CallSubject(Kind.CREDENTIAL, "", 0);
    }

    static CallSubject detach() {
        return new CallSubject(Kind.DETACH, "", 0);
    }
}
