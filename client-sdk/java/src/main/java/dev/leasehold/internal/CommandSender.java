package dev.leasehold.internal;

import java.util.concurrent.CompletableFuture;

/**
 * Sender of commands about leases: a session, or a client of a fake broker. Methods are called from any thread, and do
 * not block.
 */
public interface CommandSender extends AcquireSender {
    /** Releases the locks of one acquire, and completes {@code future} unless it is null. */
    void release(LeaseHandle handle, CompletableFuture<Void> future);
}
