package dev.leasehold;

import java.io.Serializable;
import java.time.Duration;
import java.time.Instant;

/**
 * A holder of a lock, as other callers may see it. The information is a hint that may be stale.
 *
 * @param leaseId public identifier of the lease
 * @param owner name of the process that holds the lock
 * @param reason reason of the acquire, as the holder named it
 * @param fencingToken fencing token of the holder
 * @param since time of the grant by the broker's clock; null if the broker does not report it
 * @param remaining remaining time of the lease
 */
public record Holder(String leaseId, String owner, String reason, long fencingToken, Instant since, Duration remaining)
        implements Serializable {}
