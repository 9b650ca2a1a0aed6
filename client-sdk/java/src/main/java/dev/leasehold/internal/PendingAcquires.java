package dev.leasehold.internal;

import dev.leasehold.Loss;
import dev.leasehold.LostReason;
import dev.leasehold.error.AcquireException;
import dev.leasehold.error.ClosedException;
import dev.leasehold.error.LeaseLostException;
import dev.leasehold.error.UnavailableException;
import dev.leasehold.v1.CancelAcquire;
import dev.leasehold.v1.ErrorReason;
import dev.leasehold.v1.Granted;
import dev.leasehold.v1.HoldRequest;
import dev.leasehold.v1.Lease;
import dev.leasehold.v1.Queued;
import dev.leasehold.v1.Refused;
import java.time.Duration;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The pending acquires of a session, by request id. They are sent again on each new stream until they are answered. */
final class PendingAcquires {
    /** Time after the end of a wait for which a call of unknown outcome is retried. */
    private static final long RETRY_TIMEOUT = Durations.millisToNanos(5_000);
    /** Pause before a call is retried that was rejected for now. */
    private static final long RETRY_DELAY = Durations.millisToNanos(200);
    /** Pause before a failover to another broker if this one does not reach its store. */
    private static final long STORE_FAILOVER_DELAY = Durations.millisToNanos(2_000);

    private final Session session;
    private final Map<String, PendingAcquire> acquires = new LinkedHashMap<>();

    PendingAcquires(Session session) {
        this.session = session;
    }

    int count() {
        return acquires.size();
    }

    Collection<PendingAcquire> acquires() {
        return acquires.values();
    }

    /** Starts an acquire. */
    void start(AcquireCommand command) {
        if (session.isClosed()) {
            command.listener().onFailed(new ClosedException());
            return;
        }
        add(new PendingAcquire(command, session.worker.now()));
        send(command.params().requestId());
    }

    /** Adds a call that is to be sent on the next stream. */
    void add(PendingAcquire acquire) {
        acquire.callId = 0;
        acquires.put(acquire.params().requestId(), acquire);
    }

    /**
     * Sends a call if there is a stream. A call under a lease is sent only once the lease is attached to this stream.
     */
    void send(String requestId) {
        StreamConnection connection = session.connection();
        PendingAcquire acquire = acquires.get(requestId);
        if (connection == null || acquire == null) {
            return;
        }
        Lease under = null;
        if (acquire.under() == null) {
            acquire.attachNumber++;
        } else {
            HeldLease heldLease = session.leases.get(acquire.under().leaseId());
            if (heldLease == null || heldLease.pendingRelease != null) {
                acquires.remove(requestId);
                acquire.fail(new LeaseLostException(lossOf(acquire.under())));
                return;
            }
            if (!heldLease.isAttached) {
                return;
            }
            under = heldLease.lease();
            acquire.attachNumber = heldLease.attachNumber;
        }
        // A call whose wait has timed out already is still sent once, without waiting.
        Duration remainingWait = Duration.ofNanos(Math.max(0, acquire.waitDeadline - session.worker.now()));
        acquire.callId = connection.nextCallId();
        HoldRequest message = acquire.params()
                .toMessage(acquire.callId, acquire.attachNumber, Durations.toProto(remainingWait), under);
        connection.sendCall(CallSubject.acquire(requestId), message, acquire.callId);
    }

    private static Loss lossOf(LeaseHandle under) {
        Loss loss = under.validity().loss();
        return loss == null ? new Loss(LostReason.RELEASED) : loss;
    }

    /** Sends the calls under a lease that were waiting for its attachment. If the lease has ended, they fail. */
    void sendUnder(String leaseId) {
        List<PendingAcquire> deferred = acquires.values().stream()
                .filter(acquire -> acquire.isUnder(leaseId) && acquire.callId == 0)
                .toList();
        deferred.forEach(acquire -> send(acquire.params().requestId()));
    }

    /** Cancels a call. The broker responds with a rejection, or with a grant that is then released. */
    void cancel(String requestId) {
        PendingAcquire acquire = acquires.get(requestId);
        if (acquire == null) {
            session.leases.cancelUndelivered(requestId);
            return;
        }
        acquire.cancel();
        StreamConnection connection = session.connection();
        if (connection != null && acquire.callId != 0) {
            CancelAcquire.Builder cancel = CancelAcquire.newBuilder().setCallId(acquire.callId);
            connection.send(HoldRequest.newBuilder().setCancel(cancel).build());
        } else {
            acquires.remove(requestId);
        }
    }

    /** Handles a queue position. */
    void onQueued(Queued queued) {
        CallSubject subject = session.connection().pendingSubject(queued.getCallId());
        PendingAcquire acquire =
                subject != null && subject.kind == CallSubject.Kind.ACQUIRE ? acquires.get(subject.key) : null;
        if (acquire != null) {
            acquire.notifyPosition(Converter.queuePosition(queued));
        }
    }

    /** Handles a grant. */
    void onGranted(Granted granted) {
        StreamConnection.PendingCall call = session.connection().complete(granted.getCallId());
        if (call == null || call.subject().kind != CallSubject.Kind.ACQUIRE) {
            return;
        }
        PendingAcquire acquire = acquires.remove(call.subject().key);
        if (acquire == null) {
            // An earlier transmission of the call was answered already. The lease belongs to the handle that was
            // delivered then.
            return;
        }
        Long heartbeatSentAt = session.connection().heartbeatSentAt(granted.getAsOfSequence());
        // Both were sent before the store command that granted the lock, so the validity starts at the later one. After
        // a pause of the heartbeats that is the call.
        long sentAt = heartbeatSentAt == null ? call.sentAt() : Math.max(call.sentAt(), heartbeatSentAt);
        if (acquire.under() == null) {
            session.leases.adopt(granted.getLease(), acquire, sentAt);
        } else {
            session.leases.addLocks(granted.getLease(), acquire);
        }
    }

    /** Handles a rejection: retries the call if the rejection is temporary, otherwise fails it. */
    void onRefused(String requestId, Refused refused) {
        PendingAcquire acquire = acquires.get(requestId);
        if (acquire == null || acquire.callId != refused.getCallId()) {
            return;
        }
        acquire.callId = 0;
        if (acquire.isCompleted() || !Converter.isRetryable(refused)) {
            acquires.remove(requestId);
            acquire.fail(acquire.toException(refused));
            return;
        }
        acquire.lastError = Converter.fromRefused(refused);
        acquire.reportRecovery(refused);
        session.scheduleRetry(Failover.withJitter(RETRY_DELAY), CallSubject.acquire(requestId));
        // A broker that is draining or does not reach its store should not get the retry.
        if (refused.getReason() == ErrorReason.ERROR_REASON_DRAINING) {
            session.failover.startFailover(0);
        } else if (refused.getReason() == ErrorReason.ERROR_REASON_STORE_UNAVAILABLE && session.endpoints.count() > 1) {
            session.failover.startFailover(Failover.withJitter(STORE_FAILOVER_DELAY));
        }
    }

    /** Fails the calls that were not answered within 5 s after the end of their wait. */
    void expirePending(long now) {
        List<PendingAcquire> expired = acquires.values().stream()
                .filter(acquire -> !acquire.isCompleted() && now >= acquire.waitDeadline + RETRY_TIMEOUT)
                .toList();
        for (PendingAcquire acquire : expired) {
            String message =
                    session.connection() == null ? session.failover.errorMessage() : "the broker does not answer";
            acquire.fail(acquire.lastError == null ? new UnavailableException(message, null) : acquire.lastError);
            cancel(acquire.params().requestId());
        }
    }

    /**
     * Handles the end of the stream. Cancelled calls are dropped, because the broker cancels all calls that are not
     * sent again.
     */
    void onStreamLost() {
        acquires.values().removeIf(PendingAcquire::isCompleted);
        acquires.values().forEach(acquire -> acquire.callId = 0);
    }

    /** Sends all calls on the new stream. */
    void resumeAll() {
        List.copyOf(acquires.keySet()).forEach(this::send);
    }

    /** Fails all calls. */
    void failAll(AcquireException error) {
        acquires.values().forEach(acquire -> acquire.fail(error));
        acquires.clear();
    }
}
