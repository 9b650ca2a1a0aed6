package dev.leasehold.error;

import dev.leasehold.Holder;
import java.time.Duration;
import java.util.List;
import java.util.stream.Collectors;

/** Somebody else was in the way. */
public abstract class BusyException extends AcquireException {
    private final List<Holder> holders;
    private final int queueLength;

    BusyException(String message, List<Holder> holders, int queueLength, Duration retryAfter) {
        super(named(message, holders), retryAfter);
        this.holders = List.copyOf(holders);
        this.queueLength = queueLength;
    }

    private static String named(String message, List<Holder> holders) {
        if (holders.isEmpty()) {
            return message;
        }
        return holders.stream()
                .map(one -> one.reason().isEmpty() ? one.owner() : one.owner() + " (" + one.reason() + ")")
                .collect(Collectors.joining(", ", message + "; held by ", ""));
    }

    @Override
    public List<Holder> holders() {
        return holders;
    }

    /**
     * How many wait.
     *
     * @return 0 if nobody does
     */
    public int queueLength() {
        return queueLength;
    }
}
