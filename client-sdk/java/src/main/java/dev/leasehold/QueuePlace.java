package dev.leasehold;

import java.util.List;

/**
 * A place in line. A hint: it was true when the broker looked, at most once a second.
 *
 * @param position 1 is next
 * @param queueLength how many wait in all
 * @param holders some who hold the lock; at most 5
 */
public record QueuePlace(int position, int queueLength, List<Holder> holders) {}
