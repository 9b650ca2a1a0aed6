package dev.leasehold.internal;

/**
 * One acquire.
 *
 * @param call what is asked for
 * @param waitTimeout how long to wait in line
 * @param reply who asks
 * @param under the lease that it adds to, or null
 */
public record Ask(Call call, long waitTimeout, Reply reply, Grip under) {}
