package dev.leasehold.internal;

import dev.leasehold.QueuePosition;
import dev.leasehold.StoreRecovery;
import dev.leasehold.error.AcquireException;
import dev.leasehold.error.HeldException;
import dev.leasehold.error.WaitTimeoutException;
import dev.leasehold.v1.Refused;
import java.util.List;
import java.util.Optional;

/** A pending acquire. */
final class PendingAcquire {
    /** Longest interval of heartbeats while a call waits in the queue. */
    private static final long HEARTBEAT_INTERVAL_MAX = Durations.millisToNanos(2_000);
    /** Shortest ttl that a broker grants. */
    private static final long TTL_MIN = Durations.millisToNanos(1_000);

    private final AcquireCommand command;
    /** Time until which the call may wait in the queue. */
    final long waitDeadline;
    /** Interval of heartbeats while the call waits. */
    final long heartbeatInterval;

    int attachNumber;
    /** Call id of the last transmission on the current stream; 0: not sent on it. */
    long callId;
    /** Error of the last temporary rejection, or null. */
    AcquireException lastError;

    private boolean isCompleted;
    /** Recovery that was reported last, for a call that is not in the queue, or null. */
    private StoreRecovery reportedRecovery;

    PendingAcquire(AcquireCommand command, long now) {
        this.command = command;
        waitDeadline = now + command.waitTimeout();
        long ttl = 3 * HEARTBEAT_INTERVAL_MAX;
        if (params().request().hasTtl()) {
            ttl = Math.max(Durations.protoToNanos(params().request().getTtl()), TTL_MIN);
        }
        heartbeatInterval = Math.min(ttl / 3, HEARTBEAT_INTERVAL_MAX);
    }

    AcquireParams params() {
        return command.params();
    }

    /** Returns the lease that the call adds locks to, or null. */
    LeaseHandle under() {
        return command.under();
    }

    /** Returns true if the call adds locks to this lease. */
    boolean isUnder(String leaseId) {
        return under() != null && under().leaseId().equals(leaseId);
    }

    /** Marks the call as cancelled by its caller. */
    void cancel() {
        isCompleted = true;
    }

    /** Returns true if the caller has cancelled the call or got its result. */
    boolean isCompleted() {
        return isCompleted;
    }

    /** Delivers the grant to the caller. If the caller has cancelled the call, the locks are released. */
    void deliver(LeaseHandle handle) {
        if (isCompleted) {
            handle.release(null);
            return;
        }
        isCompleted = true;
        command.listener().onGranted(handle);
    }

    /** Fails the call. */
    void fail(AcquireException error) {
        if (!isCompleted) {
            isCompleted = true;
            command.listener().onFailed(error);
        }
    }

    /** Reports that the call is not in the queue because the store recovers, once for each recovery. */
    void reportRecovery(Refused refused) {
        StoreRecovery next = Converter.recoveryFromRefused(refused).orElse(null);
        StoreRecovery last = reportedRecovery;
        boolean isKnown = next != null
                && last != null
                && last.cause().equals(next.cause())
                && last.since().equals(next.since());
        if (next != null && !isKnown) {
            notifyPosition(new QueuePosition(0, 0, List.of(), Optional.empty(), Optional.of(next)));
        }
    }

    /** Sends the queue position to the caller. */
    void notifyPosition(QueuePosition position) {
        reportedRecovery = position.position() == 0 ? position.recovery().orElse(null) : null;
        if (!isCompleted) {
            command.listener().onQueuePosition(position);
        }
    }

    /** Converts a rejection into the exception of this call. */
    AcquireException toException(Refused refused) {
        AcquireException error = Converter.fromRefused(refused);
        if (error instanceof HeldException && command.waitTimeout() > 0) {
            // The retry was sent after the end of the wait, and therefore without waiting. For the caller, the wait has
            // timed out.
            HeldException contention = (HeldException) error;
            return new WaitTimeoutException(
                    refused.getMessage(),
                    contention.holders(),
                    contention.queueLength(),
                    contention.closure().orElse(null),
                    contention.retryAfter().orElse(null));
        }
        return error;
    }
}
