package dev.leasehold;

import dev.leasehold.internal.LockName;
import dev.leasehold.v1.LockMode;
import dev.leasehold.v1.LockTarget;

/**
 * A lock to acquire, with its mode, as in {@code Target.of("gpu").namespace("render").permits(2, 8)}. The default mode
 * is exclusive. Immutable.
 */
public final class Target {
    private final LockTarget proto;

    private Target(LockTarget proto) {
        this.proto = proto;
    }

    /**
     * Returns a target for the lock with this name, in exclusive mode.
     *
     * @param name 1-512 bytes without control characters
     * @return the lock in the namespace {@code default}
     */
    public static Target of(String name) {
        return new Target(LockTarget.newBuilder()
                .setName(name)
                .setMode(LockMode.LOCK_MODE_EXCLUSIVE)
                .build());
    }

    /**
     * Sets the namespace.
     *
     * @param namespace 1-63 characters of {@code [a-z0-9-]}
     * @return a copy
     */
    public Target namespace(String namespace) {
        return new Target(proto.toBuilder().setNamespace(namespace).build());
    }

    /**
     * Sets the mode to shared: any number of shared holders hold the lock together, but none beside an exclusive
     * holder.
     *
     * @return a copy
     */
    public Target shared() {
        LockTarget.Builder shared = proto.toBuilder().clearPermits().clearLimit();
        return new Target(shared.setMode(LockMode.LOCK_MODE_SHARED).build());
    }

    /**
     * Sets the mode to semaphore, with the limit that is in use for the lock.
     *
     * @param permits number of permits to acquire
     * @return a copy
     */
    public Target permits(int permits) {
        return permits(permits, 0);
    }

    /**
     * Sets the mode to semaphore. All callers must name the same limit, unless one is set with
     * {@link LeaseholdClient#setLimit(Target, int)}, which overrides theirs.
     *
     * @param permits number of permits to acquire
     * @param limit number of permits that the lock has in all, 1-1000; 0: the limit in use
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

    /** Returns the lock as {@code namespace/name}. */
    @Override
    public String toString() {
        return lock().toString();
    }
}
