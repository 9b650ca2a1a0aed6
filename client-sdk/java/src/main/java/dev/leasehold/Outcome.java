package dev.leasehold;

import dev.leasehold.error.LeaseholdException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;

/** Conversion of a completed future into the result or the exception that its caller gets. */
final class Outcome {
    private Outcome() {}

    /** Returns the result of a completed future, or throws its exception. */
    static <T> T of(CompletableFuture<T> future) {
        try {
            return future.join();
        } catch (CompletionException e) {
            Throwable cause = e.getCause();
            if (cause instanceof LeaseholdException) {
                // The stack trace of the thread that decoded the response is replaced by that of the caller, which is
                // more useful.
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
