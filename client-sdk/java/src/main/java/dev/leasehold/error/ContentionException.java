package dev.leasehold.error;

import dev.leasehold.Holder;
import java.time.Duration;
import java.util.List;
import java.util.stream.Collectors;

/** An exception for an acquire that failed because other callers held the lock. */
public abstract class ContentionException extends AcquireException {
    private final List<Holder> holders;
    private final int queueLength;

    ContentionException(String message, List<Holder> holders, int queueLength, Duration retryAfter) {
        super(messageWithHolders(message, holders), retryAfter);
        this.holders = List.copyOf(holders);
        this.queueLength = queueLength;
    }

    private static String messageWithHolders(String message, List<Holder> holders) {
        if (holders.isEmpty()) {
            return message;
        }
        return holders.stream()
                .map(holder ->
                        holder.reason().isEmpty() ? holder.owner() : holder.owner() + " (" + holder.reason() + ")")
                .collect(Collectors.joining(", ", message + "; held by ", ""));
    }

    @Override
    public List<Holder> holders() {
        return holders;
    }

    /**
     * Returns the number of waiters in the queue of the lock.
     *
     * @return 0 if there are none
     */
    public int queueLength() {
        return queueLength;
    }
}
