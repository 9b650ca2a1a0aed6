package dev.leasehold.internal;

import dev.leasehold.Loss;
import dev.leasehold.LostReason;
import dev.leasehold.error.LeaseLostException;
import dev.leasehold.error.LeaseholdException;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * A whole lease that is being given back.
 *
 * @param answers everybody who asked for it
 * @param goneAt when the store has forgotten it, whatever became of the release
 */
record Release(List<CompletableFuture<Void>> answers, long goneAt) {
    void confirmed() {
        answers.forEach(answer -> answer.complete(null));
    }

    void failed(LeaseholdException why) {
        answers.forEach(answer -> answer.completeExceptionally(why));
    }

    /**
     * The broker says that the lease is over. It was given back within its validity, so the reason is this release or
     * an earlier sending of it, unless the reason says otherwise.
     */
    void lost(Loss loss) {
        if (loss.reason() == LostReason.RELEASED || loss.reason() == LostReason.STORE_LOST) {
            confirmed();
        } else {
            failed(new LeaseLostException(loss));
        }
    }
}
