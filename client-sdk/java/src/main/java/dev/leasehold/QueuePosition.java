package dev.leasehold;

import java.util.List;
import java.util.Optional;

/**
 * A queue position. It is a hint: the broker reads the queue at most once a second.
 *
 * @param position position in the queue; 1: next; 0: not in the queue yet, because the store recovers, and the client
 *     repeats the call until the end of its wait
 * @param queueLength number of waiters in the queue
 * @param holders some of the holders of the lock; at most 5
 * @param closure closure of the lock; empty if the lock is not closed
 * @param recovery recovery of the store, while it grants nothing new; otherwise empty
 */
public record QueuePosition(
        int position,
        int queueLength,
        List<Holder> holders,
        Optional<Closure> closure,
        Optional<StoreRecovery> recovery) {}
