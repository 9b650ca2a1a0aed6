package dev.leasehold;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.function.Function;

/** A thread that waits for an acquire, and meanwhile does what is to be told to it. */
final class Waiter implements Executor {
    private final LinkedBlockingQueue<Runnable> told = new LinkedBlockingQueue<>();
    private volatile boolean hasLeft;

    @Override
    public void execute(Runnable what) {
        told.add(what);
        if (hasLeft) {
            // A grant that nobody waits for any more is given back by whoever brings it.
            drain();
        }
    }

    private void drain() {
        for (Runnable what = told.poll(); what != null; what = told.poll()) {
            what.run();
        }
    }

    /** Waits for the answer. An answer for a lock that somebody else has may be null. */
    <T> T waitFor(LockRequest request, long wait, Function<Lease, T> found, T ifHeld) throws InterruptedException {
        Acquisition<T> acquisition = new Acquisition<>(request, this, found).ifHeld(ifHeld);
        CompletableFuture<T> future = acquisition.begin(wait);
        try {
            while (!future.isDone()) {
                told.take().run();
            }
        } catch (InterruptedException e) {
            future.cancel(false);
            throw e;
        } finally {
            hasLeft = true;
            drain();
        }
        return Outcome.of(future);
    }
}
