package dev.leasehold;

import dev.leasehold.error.LeaseholdException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;

/** What became of a future, as its caller is told who has waited for it. */
final class Outcome {
    private Outcome() {}

    /** The result of a future that is done. */
    static <T> T of(CompletableFuture<T> future) {
        try {
            return future.join();
        } catch (CompletionException e) {
            Throwable cause = e.getCause();
            if (cause instanceof LeaseholdException) {
                // It was made where the answer was read; the caller's own place says more.
                cause.fillInStackTrace();
            }
            if (cause instanceof RuntimeException) {
                throw (RuntimeException) cause;
            }
            if (cause instanceof Error) {
                throw (Error) cause;
            }
            throw e;
        }
    }
}
