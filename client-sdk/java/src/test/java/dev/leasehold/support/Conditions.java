package dev.leasehold.support;

import dev.leasehold.Holder;
import dev.leasehold.LeaseholdClient;
import dev.leasehold.LockState;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Conditions that tests wait for. */
public final class Conditions {
    private static final long TIMEOUT_SECONDS = 15;

    private Conditions() {}

    /** Waits until the queue of a lock has {@code length} waiters. */
    public static void awaitQueueLength(LeaseholdClient client, String lock, int length) throws InterruptedException {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(TIMEOUT_SECONDS);
        while (client.get(lock).map(LockState::queueLength).orElse(0) != length) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError("queue length is not " + length + ": " + client.get(lock));
            }
            // Polling without a pause would load the broker.
            TimeUnit.MILLISECONDS.sleep(5);
        }
    }

    /** Waits until a lock has a holder, and returns the holder. */
    public static Holder awaitHolder(LeaseholdClient client, String lock) throws InterruptedException {
        while (true) {
            Optional<LockState> state = client.get(lock);
            if (state.isPresent() && !state.get().holders().isEmpty()) {
                return state.get().holders().get(0);
            }
            TimeUnit.MILLISECONDS.sleep(5);
        }
    }

    /** Acquires a lock that is free or soon will be, and releases it. */
    public static void acquireAndRelease(LeaseholdClient client, String lock) throws InterruptedException {
        client.lock(lock)
                .waitUpTo(Duration.ofSeconds(TIMEOUT_SECONDS))
                .acquire()
                .close();
    }

    /** Returns the result of a future, which must complete within 15 s. */
    public static <T> T awaitResult(CompletableFuture<T> future) throws InterruptedException {
        try {
            return future.get(TIMEOUT_SECONDS, TimeUnit.SECONDS);
        } catch (ExecutionException e) {
            throw new AssertionError(e.getCause());
        } catch (TimeoutException e) {
            throw new AssertionError("not completed within " + TIMEOUT_SECONDS + " s", e);
        }
    }
}
