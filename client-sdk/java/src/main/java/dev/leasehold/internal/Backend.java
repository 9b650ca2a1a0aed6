package dev.leasehold.internal;

import dev.leasehold.LockState;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;

/**
 * A broker, as clients see it: over the network, or a fake one. Futures are completed by threads that must not block.
 */
public interface Backend extends Caller {
    /** Done when a broker answers, or has failed. */
    CompletableFuture<Void> connect();

    /** Looks at a lock; empty if nobody holds it or waits for it. */
    CompletableFuture<Optional<LockState>> look(LockName lock);

    /** Gives up every wait, releases every lease, and ends. */
    CompletableFuture<Void> close();
}
