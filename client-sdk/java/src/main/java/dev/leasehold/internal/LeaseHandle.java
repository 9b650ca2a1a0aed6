package dev.leasehold.internal;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * A lease handle: the locks that one acquire got, the validity of their lease, and the way to release them.
 * Thread-safe.
 */
public final class LeaseHandle {
    /** A lock that the call acquired or entered, with its fencing token. */
    public record LockGrant(LockName lock, long fencingToken) {}

    private final String leaseId;
    private final List<LockGrant> grants;
    private final String requestId;
    private final LeaseValidity validity;
    private final CommandSender sender;
    private final long grantedAt = System.nanoTime();
    private final AtomicBoolean isReleased = new AtomicBoolean();

    public LeaseHandle(
            String leaseId, List<LockGrant> grants, String requestId, LeaseValidity validity, CommandSender sender) {
        this.leaseId = leaseId;
        this.grants = List.copyOf(grants);
        this.requestId = requestId;
        this.validity = validity;
        this.sender = sender;
    }

    public String leaseId() {
        return leaseId;
    }

    public List<LockGrant> grants() {
        return grants;
    }

    public String requestId() {
        return requestId;
    }

    public LeaseValidity validity() {
        return validity;
    }

    public CommandSender sender() {
        return sender;
    }

    /** Returns true if the handle was released. */
    public boolean isReleased() {
        return isReleased.get();
    }

    /**
     * Releases the locks of this handle, once. Returns false if they were released before: then {@code future} is never
     * completed. {@code future} may be null.
     */
    public boolean release(CompletableFuture<Void> future) {
        if (!isReleased.compareAndSet(false, true)) {
            return false;
        }
        Telemetry.recordHold(System.nanoTime() - grantedAt, validity.loss() != null);
        sender.release(this, future);
        return true;
    }
}
