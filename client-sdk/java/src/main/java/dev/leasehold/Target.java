package dev.leasehold;

import dev.leasehold.internal.LockName;
import dev.leasehold.v1.LockMode;
import dev.leasehold.v1.LockTarget;

/**
 * One lock to take, and how: {@code Target.of("gpu").namespace("render").permits(2, 8)}. Unless told otherwise, for one
 * holder alone. Immutable.
 */
public final class Target {
    private final LockTarget proto;

    private Target(LockTarget proto) {
        this.proto = proto;
    }

    /**
     * The lock of this name, for one holder alone.
     *
     * @param name 1-512 bytes without control characters
     * @return the lock in the default namespace
     */
    public static Target of(String name) {
        return new Target(LockTarget.newBuilder()
                .setName(name)
                .setMode(LockMode.LOCK_MODE_EXCLUSIVE)
                .build());
    }

    /**
     * In another namespace than {@code default}.
     *
     * @param namespace 1-63 characters of {@code [a-z0-9-]}
     * @return a copy
     */
    public Target namespace(String namespace) {
        return new Target(proto.toBuilder().setNamespace(namespace).build());
    }

    /**
     * Together with any number of other holders that share it, but with none that does not.
     *
     * @return a copy
     */
    public Target shared() {
        LockTarget.Builder shared = proto.toBuilder().clearPermits().clearLimit();
        return new Target(shared.setMode(LockMode.LOCK_MODE_SHARED).build());
    }

    /**
     * As a semaphore whose limit is the one in use.
     *
     * @param permits so many of it
     * @return a copy
     */
    public Target permits(int permits) {
        return permits(permits, 0);
    }

    /**
     * As a semaphore. All callers name the same limit.
     *
     * @param permits so many of it
     * @param limit how many the lock has in all, 1-1000; 0: the limit in use
     * @return a copy
     */
    public Target permits(int permits, int limit) {
        return new Target(proto.toBuilder()
                .setMode(LockMode.LOCK_MODE_SEMAPHORE)
                .setPermits(permits)
                .setLimit(limit)
                .build());
    }

    LockTarget proto() {
        return proto;
    }

    LockName lock() {
        return LockName.of(proto);
    }

    /** The lock as {@code namespace/name}. */
    @Override
    public String toString() {
        return lock().toString();
    }
}
