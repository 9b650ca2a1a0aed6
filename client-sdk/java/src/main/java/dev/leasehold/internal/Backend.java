package dev.leasehold.internal;

import dev.leasehold.LockState;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.concurrent.CompletableFuture;

/**
 * A broker from the client's point of view: real brokers, or the fake one. Futures are completed by threads that must
 * not block.
 */
public interface Backend extends AcquireSender {
    /** Returns a future that completes when a broker has answered, or with the reason why none has. */
    CompletableFuture<Void> connect();

    /**
     * Requests the state of a lock; empty if it has neither holders nor waiters, is not closed, and has no set limit.
     */
    CompletableFuture<Optional<LockState>> getLockState(LockName lock);

    /** Sets the limit of a semaphore, or removes the set limit if {@code limit} is 0. Returns the previous limit. */
    CompletableFuture<OptionalInt> setLimit(LockName lock, int limit);

    /** Cancels all pending acquires, releases all leases, and closes the client. */
    CompletableFuture<Void> close();
}
