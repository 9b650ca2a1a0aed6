package dev.leasehold.internal;

import dev.leasehold.Loss;
import dev.leasehold.LostReason;
import dev.leasehold.error.LeaseLostException;
import dev.leasehold.error.LeaseholdException;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * A pending release of a whole lease.
 *
 * @param futures futures of all callers that have requested the release
 * @param endedAt time at which the lease has expired in the store, whatever the outcome of the release
 */
record PendingRelease(List<CompletableFuture<Void>> futures, long endedAt) {
    void complete() {
        futures.forEach(future -> future.complete(null));
    }

    void fail(LeaseholdException error) {
        futures.forEach(future -> future.completeExceptionally(error));
    }

    /**
     * Handles the broker's report that the lease has ended. The release was requested while the lease was valid, so the
     * cause is this release or an earlier transmission of it, unless the reason is another one.
     */
    void onLeaseEnded(Loss loss) {
        if (loss.reason() == LostReason.RELEASED || loss.reason() == LostReason.STORE_LOST) {
            complete();
        } else {
            fail(new LeaseLostException(loss));
        }
    }
}
