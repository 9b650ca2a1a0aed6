package dev.leasehold;

import java.util.List;
import java.util.Optional;

/**
 * State of a lock at the time when the broker read it.
 *
 * @param holders holders of the lock; at most 100
 * @param queueLength number of waiters in the queue
 * @param lastFencingToken the newest fencing token that was granted
 * @param closure closure of the lock; empty if the lock is not closed
 * @param permitUsage limit and used permits of a semaphore that has holders or waiters, or a set limit; otherwise empty
 */
public record LockState(
        List<Holder> holders,
        int queueLength,
        long lastFencingToken,
        Optional<Closure> closure,
        Optional<PermitUsage> permitUsage) {}
