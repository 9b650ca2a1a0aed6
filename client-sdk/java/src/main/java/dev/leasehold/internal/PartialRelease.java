package dev.leasehold.internal;

import dev.leasehold.Loss;
import dev.leasehold.error.LeaseLostException;
import dev.leasehold.error.LeaseholdException;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.concurrent.CompletableFuture;

/** A partial release: the release of the locks of one handle, lock by lock, while the lease has other handles. */
final class PartialRelease {
    final String requestId;
    final CompletableFuture<Void> future;
    private final Deque<LockName> locks = new ArrayDeque<>();

    PartialRelease(LeaseHandle handle, CompletableFuture<Void> future) {
        requestId = handle.requestId();
        this.future = future;
        handle.grants().forEach(grant -> locks.add(grant.lock()));
    }

    /** Returns the next lock to release, or null. */
    LockName nextLock() {
        return locks.peekLast();
    }

    /** Removes the lock that was just released, and returns it. */
    LockName removeReleased() {
        return locks.removeLast();
    }

    void complete() {
        future.complete(null);
    }

    void fail(LeaseholdException error) {
        future.completeExceptionally(error);
    }

    void onLeaseEnded(Loss loss) {
        fail(new LeaseLostException(loss));
    }
}
