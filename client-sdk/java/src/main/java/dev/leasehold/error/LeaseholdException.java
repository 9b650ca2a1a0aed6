package dev.leasehold.error;

import dev.leasehold.Holder;
import java.time.Duration;
import java.util.List;
import java.util.Optional;

/**
 * Base class of the exceptions of this library. Messages are for people; programs distinguish the exceptions by their
 * classes. Later versions may add classes.
 */
public abstract class LeaseholdException extends RuntimeException {
    private final Duration retryAfter;

    LeaseholdException(String message, Duration retryAfter) {
        super(message);
        this.retryAfter = retryAfter;
    }

    /**
     * Returns the time after which a retry may succeed.
     *
     * @return the time from now; empty if none is known
     */
    public Optional<Duration> retryAfter() {
        return Optional.ofNullable(retryAfter);
    }

    /**
     * Returns some of the holders of the lock, at most 5, if other callers held it.
     *
     * @return empty for other reasons
     */
    public List<Holder> holders() {
        return List.of();
    }
}
