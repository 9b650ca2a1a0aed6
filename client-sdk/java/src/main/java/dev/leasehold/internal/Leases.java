package dev.leasehold.internal;

import dev.leasehold.Loss;
import dev.leasehold.LostReason;
import dev.leasehold.error.ClosedException;
import dev.leasehold.error.LeaseLostException;
import dev.leasehold.error.UnavailableException;
import dev.leasehold.v1.AttachLease;
import dev.leasehold.v1.DetachLease;
import dev.leasehold.v1.HeartbeatAck;
import dev.leasehold.v1.HoldRequest;
import dev.leasehold.v1.Lease;
import dev.leasehold.v1.LeaseAttached;
import dev.leasehold.v1.LeaseExtended;
import dev.leasehold.v1.Refused;
import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The leases of a session, by lease id. Heartbeats renew them; their validity never exceeds what responses have
 * confirmed.
 */
final class Leases {
    private static final Logger LOG = System.getLogger("dev.leasehold");
    private static final long RETRY_DELAY = Durations.millisToNanos(100);

    private final Session session;
    private final Map<String, HeldLease> heldLeases = new LinkedHashMap<>();
    /** Lost leases whose guarded work has not stopped yet. */
    private final Map<String, HeldLease> lostLeases = new LinkedHashMap<>();

    Leases(Session session) {
        this.session = session;
    }

    int count() {
        return heldLeases.size();
    }

    /** Returns the lease with this id, or null. */
    HeldLease get(String leaseId) {
        return heldLeases.get(leaseId);
    }

    /** Removes a lease that has ended and needs no further action. */
    void remove(String leaseId) {
        heldLeases.remove(leaseId);
    }

    /** Adds the lease that was granted to a call. Its validity starts at {@code sentAt}. */
    void adopt(Lease lease, PendingAcquire acquire, long sentAt) {
        HeldLease heldLease = new HeldLease(lease, acquire, sentAt, session.worker.now());
        heldLeases.put(lease.getLeaseId(), heldLease);
        deliver(heldLease);
    }

    /** Delivers the grant of a call that added locks to an existing lease. */
    void addLocks(Lease lease, PendingAcquire acquire) {
        HeldLease heldLease = heldLeases.get(lease.getLeaseId());
        if (heldLease == null || heldLease.validity == null) {
            // The grant has attached the lease to this stream, which must not renew it.
            detach(lease.getLeaseId());
            acquire.fail(new LeaseLostException(new Loss(LostReason.EXPIRED)));
            return;
        }
        heldLease.addGrants(lease, acquire.params());
        acquire.deliver(createHandle(heldLease, acquire.params()));
    }

    /** Releases an undelivered lease because its caller has cancelled the request. */
    void cancelUndelivered(String requestId) {
        for (HeldLease heldLease : List.copyOf(heldLeases.values())) {
            if (heldLease.undelivered != null
                    && heldLease.undelivered.params().requestId().equals(requestId)) {
                heldLease.undelivered = null;
                session.pendingReleases.releaseLease(heldLease, null);
            }
        }
    }

    private LeaseHandle createHandle(HeldLease heldLease, AcquireParams params) {
        Set<LockName> requested = params.locks();
        List<LeaseHandle.LockGrant> grants = heldLease.lease().getGrantsList().stream()
                .map(grant -> new LeaseHandle.LockGrant(LockName.of(grant.getTarget()), grant.getFencingToken()))
                .filter(lockGrant -> requested.contains(lockGrant.lock()))
                .toList();
        return new LeaseHandle(heldLease.lease().getLeaseId(), grants, params.requestId(), heldLease.validity, session);
    }

    private void deliver(HeldLease heldLease) {
        // Delivers the lease if at least half of its ttl is left, otherwise after the next heartbeat, which is due
        // soon.
        if (session.worker.now() + heldLease.ttl / 2 > heldLease.validUntil) {
            return;
        }
        PendingAcquire acquire = heldLease.undelivered;
        heldLease.undelivered = null;
        heldLease.validity = new LeaseValidity(heldLease.validUntil, heldLease.ttl);
        acquire.deliver(createHandle(heldLease, acquire.params()));
    }

    /** Handles the acknowledgement of a heartbeat: extends the leases that the store has renewed. */
    void onHeartbeatAck(HeartbeatAck ack) {
        Long sentAt = session.connection().heartbeatSentAt(ack.getSequence());
        if (sentAt != null) {
            ack.getLeasesList().forEach(renewed -> extend(sentAt, renewed));
        }
    }

    private void extend(long sentAt, LeaseExtended renewed) {
        HeldLease heldLease = heldLeases.get(renewed.getLeaseId());
        if (heldLease == null || renewed.getGrantCount() != heldLease.lease().getGrantsCount()) {
            return;
        }
        heldLease.ttl = Durations.protoToNanos(renewed.getTtl());
        long validUntil = sentAt + heldLease.ttl;
        heldLease.validUntil = Math.max(heldLease.validUntil, validUntil);
        if (heldLease.undelivered != null) {
            deliver(heldLease);
        } else if (heldLease.validity != null
                && heldLease.pendingRelease == null
                && !heldLease.validity.extend(validUntil, heldLease.ttl)) {
            expire(renewed.getLeaseId());
        }
    }

    private void expire(String leaseId) {
        HeldLease heldLease = heldLeases.remove(leaseId);
        if (heldLease == null) {
            return;
        }
        LOG.log(Level.WARNING, "lock lost: no renewal of lease {0} was confirmed in time", leaseId);
        if (heldLease.isAttached) {
            detach(leaseId);
        }
        heldLease.end(new Loss(LostReason.EXPIRED));
        session.pendingAcquires.sendUnder(leaseId);
        retainLost(leaseId, heldLease);
    }

    private void retainLost(String leaseId, HeldLease heldLease) {
        // The lock is released when the work under the lease has stopped, before the lease expires in the store.
        long now = session.worker.now();
        lostLeases.values().removeIf(lost -> now > lost.validUntil + lost.ttl / 2);
        boolean isDelivered = heldLease.validity != null;
        heldLease.isAttached = false;
        heldLease.undelivered = null;
        lostLeases.put(leaseId, heldLease);
        if (!isDelivered) {
            releaseLost(leaseId);
        }
    }

    /**
     * Counts down the open lease handles of a lost lease. After the last one, releases the lease at the broker so that
     * the next waiter need not wait for its expiry.
     */
    void releaseLost(String leaseId) {
        HeldLease heldLease = lostLeases.get(leaseId);
        if (heldLease == null) {
            return;
        }
        heldLease.handleCount--;
        if (heldLease.handleCount == 0) {
            lostLeases.remove(leaseId);
            heldLeases.put(leaseId, heldLease);
            session.pendingReleases.releaseLease(heldLease, null);
        }
    }

    private void detach(String leaseId) {
        StreamConnection connection = session.connection();
        if (connection != null) {
            long callId = connection.nextCallId();
            DetachLease.Builder detach =
                    DetachLease.newBuilder().setCallId(callId).setLeaseId(leaseId);
            connection.sendCall(
                    CallSubject.detach(),
                    HoldRequest.newBuilder().setDetach(detach).build(),
                    callId);
        }
    }

    /** Attaches a lease to the current stream. */
    void attach(String leaseId) {
        StreamConnection connection = session.connection();
        HeldLease heldLease = heldLeases.get(leaseId);
        if (connection == null || heldLease == null) {
            return;
        }
        if (heldLease.pendingRelease != null) {
            session.pendingReleases.send(leaseId, 0);
            return;
        }
        if (heldLease.validity == null || heldLease.validity.loss() != null) {
            expire(leaseId);
            return;
        }
        heldLease.attachNumber++;
        long callId = connection.nextCallId();
        AttachLease.Builder attach = AttachLease.newBuilder()
                .setCallId(callId)
                .setLease(heldLease.lease())
                .setAttachNumber(heldLease.attachNumber);
        connection.sendCall(
                CallSubject.attach(leaseId),
                HoldRequest.newBuilder().setAttach(attach).build(),
                callId);
    }

    /** Handles the confirmation that a lease is attached to this stream. */
    void onAttached(LeaseAttached attached) {
        session.connection().complete(attached.getCallId());
        String leaseId = attached.getLeaseId();
        HeldLease heldLease = heldLeases.get(leaseId);
        if (heldLease == null) {
            // The lease was lost before the confirmation arrived.
            detach(leaseId);
            return;
        }
        heldLease.isAttached = true;
        heldLease.attachedAt = session.worker.now();
        if (heldLease.pendingRelease != null) {
            session.pendingReleases.send(leaseId, 0);
            return;
        }
        List.copyOf(heldLease.partialReleases.keySet())
                .forEach(releaseNumber -> session.pendingReleases.send(leaseId, releaseNumber));
        session.pendingAcquires.sendUnder(leaseId);
    }

    /** Handles a rejected attach: retries it if the rejection is temporary, otherwise ends the lease. */
    void onAttachRefused(String leaseId, Refused refused) {
        if (Converter.isRetryable(refused)) {
            session.scheduleRetry(Failover.withJitter(RETRY_DELAY), CallSubject.attach(leaseId));
            return;
        }
        HeldLease heldLease = heldLeases.get(leaseId);
        if (heldLease != null && heldLease.pendingRelease != null) {
            session.pendingReleases.send(leaseId, 0);
        } else if (heldLease != null) {
            onEnded(leaseId, Converter.lossFromRefused(refused));
        }
    }

    /** Ends a lease whose end the broker has reported. */
    void onEnded(String leaseId, Loss loss) {
        HeldLease heldLease = heldLeases.remove(leaseId);
        if (heldLease == null) {
            return;
        }
        if (heldLease.pendingRelease != null) {
            heldLease.pendingRelease.onLeaseEnded(loss);
            return;
        }
        LOG.log(Level.WARNING, "lock lost: lease {0}: {1}", leaseId, loss);
        heldLease.end(loss);
        session.pendingAcquires.sendUnder(leaseId);
        if (loss.reason() == LostReason.REVOKED || loss.reason() == LostReason.MAX_HOLD) {
            retainLost(leaseId, heldLease);
        }
    }

    /** Ends all leases because the client is closing. */
    void endAll(Loss loss) {
        for (Map.Entry<String, HeldLease> lost : List.copyOf(lostLeases.entrySet())) {
            lost.getValue().handleCount = 1;
            releaseLost(lost.getKey());
        }
        for (HeldLease heldLease : heldLeases.values()) {
            if (heldLease.undelivered != null) {
                heldLease.undelivered.fail(new ClosedException());
                heldLease.undelivered = null;
            }
            session.pendingReleases.completeOnClose(heldLease);
            heldLease.end(loss);
        }
        heldLeases.clear();
    }

    /** Ends all leases whose validity has passed, and all releases that were not confirmed in time. */
    void checkValidity(long now) {
        List<HeldLease> expired = heldLeases.values().stream()
                .filter(heldLease -> heldLease.hasExpired(now))
                .toList();
        for (HeldLease heldLease : expired) {
            String leaseId = heldLease.lease().getLeaseId();
            if (heldLease.pendingRelease != null) {
                session.pendingReleases.failUnconfirmed(leaseId);
            } else if (heldLease.validity == null) {
                discardUndelivered(leaseId);
            } else {
                expire(leaseId);
            }
        }
    }

    private void discardUndelivered(String leaseId) {
        // No heartbeat has extended the validity of a late grant enough to deliver it.
        PendingAcquire acquire = heldLeases.remove(leaseId).undelivered;
        detach(leaseId);
        if (acquire != null) {
            acquire.fail(new UnavailableException("the grant arrived after the validity of its lease had ended", null));
        }
    }

    /** Marks all leases as not attached, because the stream has ended. */
    void onStreamLost() {
        for (HeldLease heldLease : List.copyOf(heldLeases.values())) {
            heldLease.isAttached = false;
            if (heldLease.undelivered != null) {
                // The lease was not delivered: its call is sent again.
                heldLeases.remove(heldLease.lease().getLeaseId());
                session.pendingAcquires.add(heldLease.undelivered);
            }
        }
    }

    /** Attaches all leases to the new stream. */
    void resumeAll() {
        List.copyOf(heldLeases.keySet()).forEach(this::attach);
    }

    /** Sends a heartbeat if one is due for a lease or a pending acquire. */
    void heartbeatIfDue(long now) {
        StreamConnection connection = session.connection();
        if (connection == null) {
            return;
        }
        Long lastSentAt = connection.lastHeartbeatSentAt();
        long interval = Durations.MAX_NANOS;
        boolean isEarly = false;
        for (HeldLease heldLease : heldLeases.values()) {
            if (heldLease.isAttached) {
                interval = Math.min(interval, heldLease.heartbeatInterval());
                // Leases that were just attached to this stream, or were granted late, share one early heartbeat after
                // a quarter of the interval, because their broker may be busy.
                isEarly |= lastSentAt != null
                        && (heldLease.attachedAt != null && heldLease.attachedAt > lastSentAt
                                || heldLease.grantedAt > lastSentAt && heldLease.needsHeartbeat(now));
            }
        }
        for (PendingAcquire acquire : session.pendingAcquires.acquires()) {
            interval = Math.min(interval, acquire.heartbeatInterval);
        }
        if (interval == Durations.MAX_NANOS) {
            return;
        }
        if (lastSentAt == null || now >= lastSentAt + (isEarly ? interval / 4 : interval)) {
            connection.sendHeartbeat();
        }
    }

    /**
     * Starts a failover if the broker has acknowledged no heartbeat for a quarter of the shortest ttl. The broker may
     * be unreachable although the connection seems open.
     */
    void checkSilence(long now) {
        Long unansweredSince =
                session.connection() == null ? null : session.connection().unansweredSince();
        if (unansweredSince == null || !session.failover.isStable()) {
            return;
        }
        long silenceTimeout = heldLeases.values().stream()
                .filter(heldLease -> heldLease.isAttached)
                .mapToLong(heldLease -> heldLease.ttl / 4)
                .min()
                .orElse(Durations.MAX_NANOS);
        if (now > unansweredSince + silenceTimeout) {
            session.failover.startFailover(0);
        }
    }
}
