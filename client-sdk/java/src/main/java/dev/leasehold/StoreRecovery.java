package dev.leasehold;

import java.time.Duration;
import java.time.Instant;
import java.util.Optional;

/**
 * A period after a loss of data in which the store grants nothing new.
 *
 * @param cause cause for people, as the rest of a sentence that begins with the name of the store: "was restarted"
 * @param since beginning of the period by the clock of the store; empty if it is unknown
 * @param remaining time until the end of the period
 */
public record StoreRecovery(String cause, Optional<Instant> since, Duration remaining) {}
