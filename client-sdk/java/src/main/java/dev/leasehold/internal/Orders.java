package dev.leasehold.internal;

import java.util.concurrent.CompletableFuture;

/** Whoever keeps leases: a stream's keeper, or a fake broker. Called from any thread; nothing here blocks. */
public interface Orders extends Caller {
    /** Gives back what one acquire has got, and tells the answer unless that is null. */
    void release(Grip grip, CompletableFuture<Void> answer);
}
