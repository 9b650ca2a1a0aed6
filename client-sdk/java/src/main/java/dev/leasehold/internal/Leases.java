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

/** The leases of one stream, by their ids: kept by heartbeats, trusted no longer than was confirmed. */
final class Leases {
    private static final Logger LOG = System.getLogger("dev.leasehold");
    private static final long REPEAT_PAUSE = Times.millis(100);

    private final Keeper keeper;
    private final Map<String, Owned> all = new LinkedHashMap<>();
    /** The lost leases whose work has not stopped yet. */
    private final Map<String, Owned> lost = new LinkedHashMap<>();

    Leases(Keeper keeper) {
        this.keeper = keeper;
    }

    int count() {
        return all.size();
    }

    /** The lease with this id, or null. */
    Owned get(String leaseId) {
        return all.get(leaseId);
    }

    /** It is over, and nothing is to be done for it any more. */
    void forget(String leaseId) {
        all.remove(leaseId);
    }

    /** Takes on the lease that was granted to a call, with validity since that moment. */
    void own(Lease lease, Wait wait, long sent) {
        Owned owned = new Owned(lease, wait, sent, keeper.worker.now());
        all.put(lease.getLeaseId(), owned);
        handOut(owned);
    }

    /** Tells a call under a lease what it has added to it. */
    void enter(Lease lease, Wait wait) {
        Owned owned = all.get(lease.getLeaseId());
        if (owned == null || owned.trust == null) {
            // It is on this stream again, and must not be renewed.
            detach(lease.getLeaseId());
            wait.failed(new LeaseLostException(new Loss(LostReason.EXPIRED)));
            return;
        }
        owned.enlarge(lease, wait.call());
        wait.granted(grip(owned, wait.call()));
    }

    /** The caller of a lease that is not handed out yet is gone. */
    void cancelUnborn(String requestId) {
        for (Owned owned : List.copyOf(all.values())) {
            if (owned.unborn != null && owned.unborn.call().requestId().equals(requestId)) {
                owned.unborn = null;
                keeper.releases.giveBackAll(owned, null);
            }
        }
    }

    private Grip grip(Owned owned, Call call) {
        Set<LockName> asked = call.locks();
        List<Grip.Token> tokens = owned.lease().getGrantsList().stream()
                .map(grant -> new Grip.Token(LockName.of(grant.getTarget()), grant.getFencingToken()))
                .filter(token -> asked.contains(token.lock()))
                .toList();
        return new Grip(owned.lease().getLeaseId(), tokens, call.requestId(), owned.trust, keeper);
    }

    private void handOut(Owned owned) {
        // If half of its validity is left. Otherwise after the next heartbeat, which is due soon.
        if (keeper.worker.now() + owned.ttl / 2 > owned.validUntil) {
            return;
        }
        Wait wait = owned.unborn;
        owned.unborn = null;
        owned.trust = new Trust(owned.validUntil, owned.ttl);
        wait.granted(grip(owned, wait.call()));
    }

    /** A heartbeat has reached the store. */
    void acknowledged(HeartbeatAck ack) {
        Long sent = keeper.link().beatSent(ack.getSequence());
        if (sent != null) {
            ack.getLeasesList().forEach(extended -> extended(sent, extended));
        }
    }

    private void extended(long sent, LeaseExtended extended) {
        Owned owned = all.get(extended.getLeaseId());
        if (owned == null || extended.getGrantCount() != owned.lease().getGrantsCount()) {
            return;
        }
        owned.ttl = Times.nanosOf(extended.getTtl());
        long validUntil = sent + owned.ttl;
        owned.validUntil = Math.max(owned.validUntil, validUntil);
        if (owned.unborn != null) {
            handOut(owned);
        } else if (owned.trust != null && owned.release == null && !owned.trust.extend(validUntil, owned.ttl)) {
            lapse(extended.getLeaseId());
        }
    }

    /**
     * Stops renewing a lease whose validity has passed. The lock is released only after the guarded work has stopped;
     * see {@link #keepLost}.
     */
    private void lapse(String leaseId) {
        Owned owned = all.remove(leaseId);
        if (owned == null) {
            return;
        }
        LOG.log(Level.WARNING, "lock lost: no renewal of lease {0} was confirmed in time", leaseId);
        if (owned.isHere) {
            detach(leaseId);
        }
        owned.over(new Loss(LostReason.EXPIRED));
        keeper.waits.sendUnder(leaseId);
        keepLost(leaseId, owned);
    }

    private void keepLost(String leaseId, Owned owned) {
        // The lock is released when the work under the lease has stopped, before the lease expires in the store.
        long now = keeper.worker.now();
        lost.values().removeIf(one -> now > one.validUntil + one.ttl / 2);
        boolean isHeld = owned.trust != null;
        owned.isHere = false;
        owned.unborn = null;
        lost.put(leaseId, owned);
        if (!isHeld) {
            giveBackLost(leaseId);
        }
    }

    /**
     * Drops one grip of a lost lease. After the last one, releases the lease at the broker so that the next waiter need
     * not wait for its expiry.
     */
    void giveBackLost(String leaseId) {
        Owned owned = lost.get(leaseId);
        if (owned == null) {
            return;
        }
        owned.grips--;
        if (owned.grips == 0) {
            lost.remove(leaseId);
            all.put(leaseId, owned);
            keeper.releases.giveBackAll(owned, null);
        }
    }

    private void detach(String leaseId) {
        Link link = keeper.link();
        if (link != null) {
            long callId = link.nextCall();
            DetachLease.Builder detach =
                    DetachLease.newBuilder().setCallId(callId).setLeaseId(leaseId);
            link.call(
                    About.nothing(), HoldRequest.newBuilder().setDetach(detach).build(), callId);
        }
    }

    /** Puts a lease on this stream. */
    void attach(String leaseId) {
        Link link = keeper.link();
        Owned owned = all.get(leaseId);
        if (link == null || owned == null) {
            return;
        }
        if (owned.release != null) {
            keeper.releases.send(leaseId, 0);
            return;
        }
        if (owned.trust == null || owned.trust.loss() != null) {
            lapse(leaseId);
            return;
        }
        owned.attachNumber++;
        long callId = link.nextCall();
        AttachLease.Builder attach = AttachLease.newBuilder()
                .setCallId(callId)
                .setLease(owned.lease())
                .setAttachNumber(owned.attachNumber);
        link.call(
                About.attach(leaseId),
                HoldRequest.newBuilder().setAttach(attach).build(),
                callId);
    }

    /** The lease is on this stream. */
    void attached(LeaseAttached attached) {
        keeper.link().answered(attached.getCallId());
        String leaseId = attached.getLeaseId();
        Owned owned = all.get(leaseId);
        if (owned == null) {
            // Lost on the way.
            detach(leaseId);
            return;
        }
        owned.isHere = true;
        owned.cameAt = keeper.worker.now();
        if (owned.release != null) {
            keeper.releases.send(leaseId, 0);
            return;
        }
        List.copyOf(owned.parts.keySet()).forEach(part -> keeper.releases.send(leaseId, part));
        keeper.waits.sendUnder(leaseId);
    }

    /** The lease is not on this stream, for good or for now. */
    void attachRefused(String leaseId, Refused said) {
        if (Reading.isOpen(said)) {
            keeper.putOff(Moves.jittered(REPEAT_PAUSE), About.attach(leaseId));
            return;
        }
        Owned owned = all.get(leaseId);
        if (owned != null && owned.release != null) {
            keeper.releases.send(leaseId, 0);
        } else if (owned != null) {
            lose(leaseId, Reading.lost(said));
        }
    }

    /** The broker says that a lease is over. */
    void lose(String leaseId, Loss loss) {
        Owned owned = all.remove(leaseId);
        if (owned == null) {
            return;
        }
        if (owned.release != null) {
            owned.release.lost(loss);
            return;
        }
        LOG.log(Level.WARNING, "lock lost: lease {0}: {1}", leaseId, loss);
        owned.over(loss);
        keeper.waits.sendUnder(leaseId);
        if (loss.reason() == LostReason.REVOKED || loss.reason() == LostReason.MAX_HOLD) {
            keepLost(leaseId, owned);
        }
    }

    /** The client is shut down. */
    void close(Loss loss) {
        for (Map.Entry<String, Owned> one : List.copyOf(lost.entrySet())) {
            one.getValue().grips = 1;
            giveBackLost(one.getKey());
        }
        for (Owned owned : all.values()) {
            if (owned.unborn != null) {
                owned.unborn.failed(new ClosedException());
                owned.unborn = null;
            }
            keeper.releases.close(owned);
            owned.over(loss);
        }
        all.clear();
    }

    /** Ends what ran out. */
    void watchValidity(long now) {
        List<Owned> due =
                all.values().stream().filter(owned -> owned.isDue(now)).toList();
        for (Owned owned : due) {
            String leaseId = owned.lease().getLeaseId();
            if (owned.release != null) {
                keeper.releases.unconfirmed(leaseId);
            } else if (owned.trust == null) {
                notBorn(leaseId);
            } else {
                lapse(leaseId);
            }
        }
    }

    private void notBorn(String leaseId) {
        // No heartbeat has made enough of a late grant.
        Wait wait = all.remove(leaseId).unborn;
        detach(leaseId);
        if (wait != null) {
            wait.failed(new UnavailableException("the lock was granted so late that nobody could rely on it", null));
        }
    }

    /** Nothing is on a stream any more. */
    void offStream() {
        for (Owned owned : List.copyOf(all.values())) {
            owned.isHere = false;
            if (owned.unborn != null) {
                // It was not handed out: its call begins again.
                all.remove(owned.lease().getLeaseId());
                keeper.waits.again(owned.unborn);
            }
        }
    }

    /** Brings every lease to a new stream. */
    void takeUp() {
        List.copyOf(all.keySet()).forEach(this::attach);
    }

    /** Sends the heartbeat that the leases and waits need. */
    void beatIfDue(long now) {
        Link link = keeper.link();
        if (link == null) {
            return;
        }
        Long last = link.lastBeat();
        long pause = Times.MAX;
        boolean isSoon = false;
        for (Owned owned : all.values()) {
            if (owned.isHere) {
                pause = Math.min(pause, owned.interval());
                // One soon for all that have just come here, or were granted late: their broker is busy.
                isSoon |= last != null
                        && (owned.cameAt != null && owned.cameAt > last || owned.grantedAt > last && owned.isOld(now));
            }
        }
        for (Wait wait : keeper.waits.all()) {
            pause = Math.min(pause, wait.interval);
        }
        if (pause == Times.MAX) {
            return;
        }
        if (last == null || now >= last + (isSoon ? pause / 4 : pause)) {
            link.beat();
        }
    }

    /** A broker that answers no heartbeat for a quarter of a ttl may be gone, though its connection seems to live. */
    void watchSilence(long now) {
        Long since = keeper.link() == null ? null : keeper.link().silentSince();
        if (since == null || !keeper.moves.isSettled()) {
            return;
        }
        long patience = all.values().stream()
                .filter(owned -> owned.isHere)
                .mapToLong(owned -> owned.ttl / 4)
                .min()
                .orElse(Times.MAX);
        if (now > since + patience) {
            keeper.moves.leave(0);
        }
    }
}
