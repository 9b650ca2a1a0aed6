package dev.leasehold;

import java.util.List;

/**
 * What a lock was doing when the broker looked.
 *
 * @param holders who holds it; at most 100
 * @param queueLength how many wait
 * @param lastFencingToken the newest token given
 */
public record LockState(List<Holder> holders, int queueLength, long lastFencingToken) {}
