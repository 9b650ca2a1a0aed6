package dev.leasehold.error;

import dev.leasehold.Closure;
import dev.leasehold.Holder;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.stream.Collectors;

/** An exception for an acquire that failed because other callers held the lock, or it was closed. */
public abstract class ContentionException extends AcquireException {
    private final List<Holder> holders;
    private final int queueLength;
    private final Closure closure;

    ContentionException(String message, List<Holder> holders, int queueLength, Closure closure, Duration retryAfter) {
        super(messageWithOwners(message, holders, closure), retryAfter);
        this.holders = List.copyOf(holders);
        this.queueLength = queueLength;
        this.closure = closure;
    }

    private static String messageWithOwners(String message, List<Holder> holders, Closure closure) {
        String text = message;
        if (!holders.isEmpty()) {
            text += holders.stream()
                    .map(holder -> ownerText(holder.owner(), holder.reason()))
                    .collect(Collectors.joining(", ", "; held by ", ""));
        }
        if (closure != null && !closure.owner().isEmpty()) {
            text += "; closed by " + ownerText(closure.owner(), closure.reason());
        }
        return text;
    }

    private static String ownerText(String owner, String reason) {
        return reason.isEmpty() ? owner : owner + " (" + reason + ")";
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

    /**
     * Returns the closure of the lock.
     *
     * @return empty if the lock is not closed
     */
    public Optional<Closure> closure() {
        return Optional.ofNullable(closure);
    }
}
