package dev.leasehold.internal;

import dev.leasehold.LockState;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;

/**
 * A broker from the client's point of view: real brokers, or the fake one. Futures are completed by threads that must
 * not block.
 */
public interface Backend extends AcquireSender {
    /** Returns a future that completes when a broker has answered, or with the reason why none has. */
    CompletableFuture<Void> connect();

    /** Requests the state of a lock; empty if the lock has neither holders nor waiters. */
    CompletableFuture<Optional<LockState>> getLockState(LockName lock);

    /** Cancels all pending acquires, releases all leases, and closes the client. */
    CompletableFuture<Void> close();
}
