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

/** A lease of a stream, or on its way to the next one. */
final class Owned {
    private Lease lease;
    long ttl;
    long validUntil;
    int attachNumber;
    boolean isHere = true;
    final long grantedAt;
    /** When it came to this stream from another one, or null. */
    Long cameAt;
    /** What its holders trust; null until it is handed out. */
    Trust trust;
    /** The call that it was granted to, while too little of its validity is known to hand it out. */
    Wait unborn;
    /** Grips that have not given back what they have. */
    int grips = 1;

    Release release;
    final Map<Long, Part> parts = new LinkedHashMap<>();
    private final long interval;

    Owned(Lease lease, Wait wait, long sent, long now) {
        this.lease = lease;
        ttl = Times.nanosOf(lease.getTtl());
        validUntil = sent + ttl;
        attachNumber = wait.attachNumber;
        grantedAt = now;
        unborn = wait;
        long asked = Times.nanosOf(lease.getHeartbeatInterval());
        interval = asked > 0 ? asked : ttl / 3;
    }

    /** The lease as the broker gave it, with its secret. */
    Lease lease() {
        return lease;
    }

    /** Merges the grants of the call's own locks; the answer may omit grants added by other calls. */
    void enlarge(Lease answer, Call call) {
        Set<LockName> asked = call.locks();
        Stream<Grant> others = lease.getGrantsList().stream().filter(grant -> !asked.contains(lockOf(grant)));
        Stream<Grant> own = answer.getGrantsList().stream().filter(grant -> asked.contains(lockOf(grant)));
        List<Grant> all = Stream.concat(others, own).toList();
        lease = answer.toBuilder().clearGrants().addAllGrants(all).build();
        grips++;
    }

    /** It has that lock no more. */
    void dropGrant(LockName gone) {
        List<Grant> kept = lease.getGrantsList().stream()
                .filter(grant -> !lockOf(grant).equals(gone))
                .toList();
        lease = lease.toBuilder().clearGrants().addAllGrants(kept).build();
    }

    /** How often it needs heartbeats. */
    long interval() {
        return Math.min(interval, ttl / 3);
    }

    /** Whether its validity counts from so long ago that a heartbeat is due. */
    boolean isOld(long now) {
        return now >= validUntil - ttl + interval();
    }

    /** Whether its time has passed. */
    boolean isDue(long now) {
        if (release != null) {
            return now >= release.goneAt();
        }
        if (trust == null) {
            return now > grantedAt + ttl;
        }
        return trust.loss(now) != null;
    }

    /** Nobody may rely on it any more. */
    void over(Loss loss) {
        if (trust != null) {
            trust.end(loss);
        }
        if (unborn != null) {
            unborn.failed(new LeaseLostException(loss));
        }
        Loss first = trust == null ? loss : trust.loss();
        parts.values().forEach(part -> part.lost(first));
        parts.clear();
    }

    private static LockName lockOf(Grant grant) {
        return LockName.of(grant.getTarget());
    }
}
