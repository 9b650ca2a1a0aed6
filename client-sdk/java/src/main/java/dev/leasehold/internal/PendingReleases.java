package dev.leasehold.internal;

import dev.leasehold.Loss;
import dev.leasehold.LostReason;
import dev.leasehold.error.AcquireException;
import dev.leasehold.error.LeaseLostException;
import dev.leasehold.error.RefusedException;
import dev.leasehold.error.UnconfirmedException;
import dev.leasehold.v1.HoldRelease;
import dev.leasehold.v1.HoldRequest;
import dev.leasehold.v1.Refused;
import dev.leasehold.v1.ReleaseRequest;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** The pending releases of a session: of the whole lease for its last handle, otherwise of the locks of one handle. */
final class PendingReleases {
    private static final long RETRY_DELAY = Durations.millisToNanos(100);

    private final Session session;
    private long lastNumber;
    /** Number of pending unary releases. */
    private int pendingUnaryCount;
    /** Futures of releases that wait for the end of the stream while the client is closing. */
    private final List<CompletableFuture<Void>> closingFutures = new ArrayList<>();

    PendingReleases(Session session) {
        this.session = session;
    }

    /** Releases the locks of a lease handle. */
    void release(LeaseHandle handle, CompletableFuture<Void> requested) {
        CompletableFuture<Void> future = requested == null ? new CompletableFuture<>() : requested;
        HeldLease heldLease = session.leases.get(handle.leaseId());
        if (heldLease == null) {
            // The lease was lost before.
            Loss loss = handle.validity().loss();
            future.completeExceptionally(new LeaseLostException(loss == null ? new Loss(LostReason.CLOSED) : loss));
            session.leases.releaseLost(handle.leaseId());
            return;
        }
        if (heldLease.pendingRelease != null) {
            // A call under the lease was granted while the whole lease was being released.
            heldLease.pendingRelease.futures().add(future);
            return;
        }
        heldLease.handleCount--;
        if (heldLease.handleCount > 0) {
            lastNumber++;
            heldLease.partialReleases.put(lastNumber, new PartialRelease(handle, future));
            send(handle.leaseId(), lastNumber);
        } else {
            releaseLease(heldLease, future);
        }
    }

    /** Releases a whole lease, because it has no handles. */
    void releaseLease(HeldLease heldLease, CompletableFuture<Void> future) {
        if (heldLease.validity != null) {
            heldLease.validity.end(new Loss(LostReason.RELEASED));
        }
        List<CompletableFuture<Void>> futures = new ArrayList<>();
        heldLease.partialReleases.values().forEach(partialRelease -> futures.add(partialRelease.future));
        heldLease.partialReleases.clear();
        if (future != null) {
            futures.add(future);
        }
        heldLease.pendingRelease =
                new PendingRelease(futures, Math.max(session.worker.now(), heldLease.validUntil) + heldLease.ttl / 2);
        send(heldLease.lease().getLeaseId(), 0);
    }

    /** Sends the release of a lease, or of the next lock of a partial release. */
    void send(String leaseId, long number) {
        StreamConnection connection = session.connection();
        HeldLease heldLease = session.leases.get(leaseId);
        if (connection == null || heldLease == null) {
            return;
        }
        if (number != 0) {
            sendPartial(connection, heldLease, number);
        } else if (heldLease.isAttached) {
            long callId = connection.nextCallId();
            HoldRelease.Builder release =
                    HoldRelease.newBuilder().setCallId(callId).setLeaseId(leaseId);
            connection.sendCall(
                    CallSubject.release(leaseId, 0),
                    HoldRequest.newBuilder().setRelease(release).build(),
                    callId);
        } else {
            // A unary release, for a lease that is not attached to this stream.
            ReleaseRequest request =
                    ReleaseRequest.newBuilder().setLease(heldLease.lease()).build();
            pendingUnaryCount++;
            connection.releaseUnary(
                    request, (response, error) -> session.worker.post(() -> onUnaryResponse(leaseId, error)));
        }
    }

    private void sendPartial(StreamConnection connection, HeldLease heldLease, long number) {
        PartialRelease partialRelease = heldLease.partialReleases.get(number);
        // The broker would reject it on a stream to which the lease is not attached.
        if (partialRelease == null || !heldLease.isAttached) {
            return;
        }
        String leaseId = heldLease.lease().getLeaseId();
        long callId = connection.nextCallId();
        HoldRelease.Builder release = HoldRelease.newBuilder()
                .setCallId(callId)
                .setLeaseId(leaseId)
                .setLock(partialRelease.nextLock().toProto())
                .setRequestId(partialRelease.requestId);
        connection.sendCall(
                CallSubject.release(leaseId, number),
                HoldRequest.newBuilder().setRelease(release).build(),
                callId);
    }

    private void onUnaryResponse(String leaseId, Throwable error) {
        pendingUnaryCount--;
        if (error == null) {
            onReleased(leaseId);
        } else {
            onRefused(leaseId, Converter.refusedFromStatus(error));
        }
        session.closeStreamIfReady();
    }

    /** Returns true if unary releases are pending, which closing the connection would cancel. */
    boolean hasPendingUnary() {
        return pendingUnaryCount > 0;
    }

    /** Handles the confirmation of a release. */
    void onReleased(String leaseId) {
        HeldLease heldLease = session.leases.get(leaseId);
        if (heldLease != null && heldLease.pendingRelease != null) {
            session.leases.remove(leaseId);
            heldLease.pendingRelease.complete();
        }
    }

    /** Handles a rejected release: retries it if the rejection is temporary, otherwise fails it. */
    void onRefused(String leaseId, Refused refused) {
        if (Converter.isRetryable(refused)) {
            session.scheduleRetry(Failover.withJitter(RETRY_DELAY), CallSubject.release(leaseId, 0));
            return;
        }
        HeldLease heldLease = session.leases.get(leaseId);
        if (heldLease == null || heldLease.pendingRelease == null) {
            return;
        }
        session.leases.remove(leaseId);
        AcquireException error = Converter.fromRefused(refused);
        if (error instanceof LeaseLostException) {
            heldLease.pendingRelease.onLeaseEnded(((LeaseLostException) error).loss());
        } else {
            heldLease.pendingRelease.fail(new RefusedException(refused.getMessage()));
        }
    }

    /** Fails a release that no broker has confirmed before the lease expired. */
    void failUnconfirmed(String leaseId) {
        PendingRelease pendingRelease = session.leases.get(leaseId).pendingRelease;
        session.leases.remove(leaseId);
        pendingRelease.fail(new UnconfirmedException());
    }

    /**
     * Handles the confirmation for one lock of a partial release. The lease keeps {@code holdCount} entries of the
     * lock.
     */
    void onPartialRelease(CallSubject subject, int holdCount) {
        HeldLease heldLease = session.leases.get(subject.key);
        PartialRelease partialRelease = heldLease == null ? null : heldLease.partialReleases.get(subject.releaseNumber);
        if (partialRelease == null) {
            return;
        }
        LockName released = partialRelease.removeReleased();
        if (holdCount == 0) {
            heldLease.removeGrant(released);
        }
        if (partialRelease.nextLock() != null) {
            send(subject.key, subject.releaseNumber);
        } else {
            heldLease.partialReleases.remove(subject.releaseNumber);
            partialRelease.complete();
        }
    }

    /**
     * Handles the rejection for one lock of a partial release: retries it if the rejection is temporary, otherwise
     * fails it.
     */
    void onPartialRefused(CallSubject subject, Refused refused) {
        if (Converter.isRetryable(refused)) {
            session.scheduleRetry(Failover.withJitter(RETRY_DELAY), subject);
            return;
        }
        HeldLease heldLease = session.leases.get(subject.key);
        PartialRelease partialRelease =
                heldLease == null ? null : heldLease.partialReleases.remove(subject.releaseNumber);
        if (partialRelease != null) {
            partialRelease.fail(new RefusedException(refused.getMessage()));
        }
    }

    /** Has the releases of this lease completed by {@link #onStreamClosed}, because the client is closing. */
    void completeOnClose(HeldLease heldLease) {
        heldLease.partialReleases.values().forEach(partialRelease -> closingFutures.add(partialRelease.future));
        heldLease.partialReleases.clear();
        if (heldLease.pendingRelease != null) {
            closingFutures.addAll(heldLease.pendingRelease.futures());
        }
    }

    /**
     * Completes the releases that wait for the end of the stream. {@code isConfirmed} is true if the broker has closed
     * the stream with all its leases.
     */
    void onStreamClosed(boolean isConfirmed) {
        for (CompletableFuture<Void> future : closingFutures) {
            if (isConfirmed) {
                future.complete(null);
            } else {
                future.completeExceptionally(new UnconfirmedException());
            }
        }
        closingFutures.clear();
    }
}
