package dev.leasehold;

import java.util.List;
import java.util.Optional;

/**
 * A queue position. It is a hint: the broker reads the queue at most once a second.
 *
 * @param position position in the queue; 1: next
 * @param queueLength number of waiters in the queue
 * @param holders some of the holders of the lock; at most 5
 * @param closure closure of the lock; empty if the lock is not closed
 */
public record QueuePosition(int position, int queueLength, List<Holder> holders, Optional<Closure> closure) {}
