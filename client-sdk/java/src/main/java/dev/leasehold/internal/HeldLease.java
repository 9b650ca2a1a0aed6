package dev.leasehold.internal;

import dev.leasehold.Loss;
import dev.leasehold.error.LeaseLostException;
import dev.leasehold.v1.Grant;
import dev.leasehold.v1.Lease;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Stream;

/** A lease of a session, attached to the current stream or to be attached to the next one. */
final class HeldLease {
    private Lease lease;
    long ttl;
    long validUntil;
    int attachNumber;
    boolean isAttached = true;
    final long grantedAt;
    /** Time at which the lease was attached to this stream after another one, or null. */
    Long attachedAt;
    /** Validity of the lease, shared with its handles; null until the lease is delivered. */
    LeaseValidity validity;
    /**
     * The call that was granted the lease, until the lease is delivered; null after that. A late grant is delivered
     * only once a heartbeat has extended its validity.
     */
    PendingAcquire undelivered;
    /** Number of lease handles that have not released their locks. */
    int handleCount = 1;

    PendingRelease pendingRelease;
    final Map<Long, PartialRelease> partialReleases = new LinkedHashMap<>();
    private final long heartbeatInterval;

    HeldLease(Lease lease, PendingAcquire acquire, long sentAt, long now) {
        this.lease = lease;
        ttl = Durations.protoToNanos(lease.getTtl());
        validUntil = sentAt + ttl;
        attachNumber = acquire.attachNumber;
        grantedAt = now;
        undelivered = acquire;
        long requestedInterval = Durations.protoToNanos(lease.getHeartbeatInterval());
        heartbeatInterval = requestedInterval > 0 ? requestedInterval : ttl / 3;
    }

    /** Returns the lease as the broker sent it, with its secret token. */
    Lease lease() {
        return lease;
    }

    /** Merges the grants of the call's own locks; the response may omit grants added by other calls. */
    void addGrants(Lease response, AcquireParams params) {
        Set<LockName> requested = params.locks();
        Stream<Grant> others = lease.getGrantsList().stream().filter(grant -> !requested.contains(lockOf(grant)));
        Stream<Grant> added = response.getGrantsList().stream().filter(grant -> requested.contains(lockOf(grant)));
        List<Grant> grants = Stream.concat(others, added).toList();
        lease = response.toBuilder().clearGrants().addAllGrants(grants).build();
        handleCount++;
    }

    /** Removes the grant of a lock that was released. */
    void removeGrant(LockName released) {
        List<Grant> remaining = lease.getGrantsList().stream()
                .filter(grant -> !lockOf(grant).equals(released))
                .toList();
        lease = lease.toBuilder().clearGrants().addAllGrants(remaining).build();
    }

    /** Returns the interval of heartbeats in nanoseconds. */
    long heartbeatInterval() {
        return Math.min(heartbeatInterval, ttl / 3);
    }

    /** Returns true if the validity started at least one heartbeat interval ago, so that a heartbeat is due. */
    boolean needsHeartbeat(long now) {
        return now >= validUntil - ttl + heartbeatInterval();
    }

    /** Returns true if the lease has expired, or the time for its release or its delivery has passed. */
    boolean hasExpired(long now) {
        if (pendingRelease != null) {
            return now >= pendingRelease.endedAt();
        }
        if (validity == null) {
            return now > grantedAt + ttl;
        }
        return validity.loss(now) != null;
    }

    /** Ends the validity of the lease and fails its undelivered grant and its partial releases. */
    void end(Loss loss) {
        if (validity != null) {
            validity.end(loss);
        }
        if (undelivered != null) {
            undelivered.fail(new LeaseLostException(loss));
        }
        Loss firstLoss = validity == null ? loss : validity.loss();
        partialReleases.values().forEach(partialRelease -> partialRelease.onLeaseEnded(firstLoss));
        partialReleases.clear();
    }

    private static LockName lockOf(Grant grant) {
        return LockName.of(grant.getTarget());
    }
}
