package dev.leasehold;

import java.io.Serializable;
import java.time.Duration;
import java.time.Instant;

/**
 * Somebody who holds a lock, as others may see it. A hint, perhaps stale already.
 *
 * @param leaseId public identifier of the lease
 * @param owner the process
 * @param reason why it took the lock
 * @param fencingToken its token
 * @param since since when, by the broker's clock; null if the broker does not say
 * @param remaining the time left on its lease
 */
public record Holder(String leaseId, String owner, String reason, long fencingToken, Instant since, Duration remaining)
        implements Serializable {}
