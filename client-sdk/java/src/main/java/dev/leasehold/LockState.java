package dev.leasehold;

import java.util.List;

/**
 * State of a lock at the time when the broker read it.
 *
 * @param holders holders of the lock; at most 100
 * @param queueLength number of waiters in the queue
 * @param lastFencingToken the newest fencing token that was granted
 */
public record LockState(List<Holder> holders, int queueLength, long lastFencingToken) {}
