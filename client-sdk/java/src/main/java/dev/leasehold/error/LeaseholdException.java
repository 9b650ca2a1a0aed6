package dev.leasehold.error;

import dev.leasehold.Holder;
import java.time.Duration;
import java.util.List;
import java.util.Optional;

/** Whatever this library throws of itself. Messages are for people; branch on the classes. New ones may come. */
public abstract class LeaseholdException extends RuntimeException {
    private final Duration retryAfter;

    LeaseholdException(String message, Duration retryAfter) {
        super(message);
        this.retryAfter = retryAfter;
    }

    /**
     * When to try again, if that is worth while.
     *
     * @return the time from now
     */
    public Optional<Duration> retryAfter() {
        return Optional.ofNullable(retryAfter);
    }

    /**
     * Some who hold the lock, if they were in the way; at most 5.
     *
     * @return perhaps nobody
     */
    public List<Holder> holders() {
        return List.of();
    }
}
