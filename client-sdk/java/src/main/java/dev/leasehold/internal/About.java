package dev.leasehold.internal;

/** What a call of a stream is about. No record: the id of a request is secret, and must not be shown by mistake. */
final class About {
    /** What it does. */
    enum Kind {
        ACQUIRE,
        ATTACH,
        RELEASE,
        CREDENTIAL,
        NOTHING
    }

    final Kind kind;
    /** A request, or a lease. */
    final String key;
    /** The part of the lease with this number; 0: all of it. */
    final long part;

    private About(Kind kind, String key, long part) {
        this.kind = kind;
        this.key = key;
        this.part = part;
    }

    static About acquire(String requestId) {
        return new About(Kind.ACQUIRE, requestId, 0);
    }

    static About attach(String leaseId) {
        return new About(Kind.ATTACH, leaseId, 0);
    }

    static About release(String leaseId, long part) {
        return new About(Kind.RELEASE, leaseId, part);
    }

    static About credential() {
        return new About(Kind.CREDENTIAL, "", 0);
    }

    static About nothing() {
        return new About(Kind.NOTHING, "", 0);
    }
}
