package dev.leasehold.internal;

/**
 * A command to acquire locks, with the listener for its results.
 *
 * @param params the locks and the settings of the acquire
 * @param waitTimeout longest wait in the queue, in nanoseconds
 * @param listener listener for the results
 * @param under the lease that the acquire adds locks to, or null
 */
public record AcquireCommand(AcquireParams params, long waitTimeout, AcquireListener listener, LeaseHandle under) {}
