package dev.leasehold;

import java.io.Serializable;
import java.time.Duration;
import java.time.Instant;

/**
 * A period in which a lock grants nothing new. The information is a hint that may be stale.
 *
 * @param cause cause of the closure
 * @param owner name of the process whose lease has ended, or of the operator; empty if the caller may not observe the
 *     lock
 * @param reason reason of the process for its lease, or of the operator; may be empty
 * @param until end of the period by the clock of the store; null if the broker does not report it
 * @param remaining time until the end of the period
 */
public record Closure(ClosureCause cause, String owner, String reason, Instant until, Duration remaining)
        implements Serializable {}
