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

/** What tests wait for. */
public final class Line {
    private static final long LIMIT_SECONDS = 15;

    private Line() {}

    /** Waits until so many wait for a lock. */
    public static void waitsFor(LeaseholdClient client, String lock, int length) throws InterruptedException {
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(LIMIT_SECONDS);
        while (client.get(lock).map(LockState::queueLength).orElse(0) != length) {
            if (System.nanoTime() > until) {
                throw new AssertionError("not in line: " + client.get(lock));
            }
            // A look costs the broker something, too.
            TimeUnit.MILLISECONDS.sleep(5);
        }
    }

    /** Waits until somebody holds a lock. */
    public static Holder holderOf(LeaseholdClient client, String lock) throws InterruptedException {
        while (true) {
            Optional<LockState> state = client.get(lock);
            if (state.isPresent() && !state.get().holders().isEmpty()) {
                return state.get().holders().get(0);
            }
            TimeUnit.MILLISECONDS.sleep(5);
        }
    }

    /** Takes a lock that is free or soon will be, and gives it back. */
    public static void takes(LeaseholdClient client, String lock) throws InterruptedException {
        client.lock(lock).waitUpTo(Duration.ofSeconds(LIMIT_SECONDS)).acquire().close();
    }

    /** The result of something that is done soon. */
    public static <T> T soon(CompletableFuture<T> future) throws InterruptedException {
        try {
            return future.get(LIMIT_SECONDS, TimeUnit.SECONDS);
        } catch (ExecutionException e) {
            throw new AssertionError(e.getCause());
        } catch (TimeoutException e) {
            throw new AssertionError("not in time", e);
        }
    }
}
