package dev.leasehold;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.function.Function;

/** Executor of a thread that waits for an acquire: the thread runs the callbacks of the acquire until it completes. */
final class Waiter implements Executor {
    private final LinkedBlockingQueue<Runnable> callbacks = new LinkedBlockingQueue<>();
    private volatile boolean hasReturned;

    @Override
    public void execute(Runnable callback) {
        callbacks.add(callback);
        if (hasReturned) {
            // The waiting thread has left: the thread that delivers a grant releases the grant itself.
            drain();
        }
    }

    private void drain() {
        for (Runnable callback = callbacks.poll(); callback != null; callback = callbacks.poll()) {
            callback.run();
        }
    }

    /**
     * Blocks until the acquire completes, and returns its result. {@code resultIfHeld} is the result if another caller
     * holds the lock; null: the acquire fails with HeldException instead.
     */
    <T> T awaitResult(LockRequest request, long wait, Function<Lease, T> toResult, T resultIfHeld)
            throws InterruptedException {
        Acquisition<T> acquisition = new Acquisition<>(request, this, toResult).withResultIfHeld(resultIfHeld);
        CompletableFuture<T> future = acquisition.start(wait);
        try {
            while (!future.isDone()) {
                callbacks.take().run();
            }
        } catch (InterruptedException e) {
            future.cancel(false);
            throw e;
        } finally {
            hasReturned = true;
            drain();
        }
        return Outcome.of(future);
    }
}
