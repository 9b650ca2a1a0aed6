package dev.leasehold.internal;

import dev.leasehold.Loss;
import dev.leasehold.error.LeaseLostException;
import dev.leasehold.error.LeaseholdException;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.concurrent.CompletableFuture;

/** What one grip of several gives back, lock by lock. */
final class Part {
    final String requestId;
    final CompletableFuture<Void> answer;
    private final Deque<LockName> locks = new ArrayDeque<>();

    Part(Grip grip, CompletableFuture<Void> answer) {
        requestId = grip.requestId();
        this.answer = answer;
        grip.tokens().forEach(token -> locks.add(token.lock()));
    }

    /** What is given back next, or null. */
    LockName next() {
        return locks.peekLast();
    }

    /** That is done; what it was. */
    LockName done() {
        return locks.removeLast();
    }

    void confirmed() {
        answer.complete(null);
    }

    void failed(LeaseholdException why) {
        answer.completeExceptionally(why);
    }

    void lost(Loss loss) {
        failed(new LeaseLostException(loss));
    }
}
