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

/** Calls without an answer, by request: sent again on every stream until there is one. */
final class Waits {
    /** How much longer than it may wait a call of unknown outcome is repeated. */
    private static final long REPEAT_LIMIT = Times.millis(5_000);
    /** How soon a call is repeated that was refused for now. */
    private static final long REPEAT_PAUSE = Times.millis(200);
    /** How soon another broker is tried when this one does not reach its store. */
    private static final long STORE_PAUSE = Times.millis(2_000);

    private final Keeper keeper;
    private final Map<String, Wait> all = new LinkedHashMap<>();

    Waits(Keeper keeper) {
        this.keeper = keeper;
    }

    int count() {
        return all.size();
    }

    Collection<Wait> all() {
        return all.values();
    }

    /** One more call. */
    void ask(Ask ask) {
        if (keeper.isOver()) {
            ask.reply().failed(new ClosedException());
            return;
        }
        again(new Wait(ask, keeper.worker.now()));
        send(ask.call().requestId());
    }

    /** A call begins again, on the next stream. */
    void again(Wait wait) {
        wait.callId = 0;
        all.put(wait.call().requestId(), wait);
    }

    /** Sends a call, if it can be sent now. Under a lease that is only once that is on this stream. */
    void send(String requestId) {
        Link link = keeper.link();
        Wait wait = all.get(requestId);
        if (link == null || wait == null) {
            return;
        }
        Lease under = null;
        if (wait.under() == null) {
            wait.attachNumber++;
        } else {
            Owned owned = keeper.leases.get(wait.under().leaseId());
            if (owned == null || owned.release != null) {
                all.remove(requestId);
                wait.failed(new LeaseLostException(lossOf(wait.under())));
                return;
            }
            if (!owned.isHere) {
                return;
            }
            under = owned.lease();
            wait.attachNumber = owned.attachNumber;
        }
        // A call that is late already still asks once, without waiting.
        Duration left = Duration.ofNanos(Math.max(0, wait.until - keeper.worker.now()));
        wait.callId = link.nextCall();
        HoldRequest message = wait.call().message(wait.callId, wait.attachNumber, Times.proto(left), under);
        link.call(About.acquire(requestId), message, wait.callId);
    }

    private static Loss lossOf(Grip under) {
        Loss loss = under.trust().loss();
        return loss == null ? new Loss(LostReason.RELEASED) : loss;
    }

    /** What could not be sent before, since its lease was not here. If that is over now, so are they. */
    void sendUnder(String leaseId) {
        List<Wait> waiting = all.values().stream()
                .filter(wait -> wait.isFor(leaseId) && wait.callId == 0)
                .toList();
        waiting.forEach(wait -> send(wait.call().requestId()));
    }

    /** The caller is gone: the broker answers with a refusal, or with a grant that is given back. */
    void cancel(String requestId) {
        Wait wait = all.get(requestId);
        if (wait == null) {
            keeper.leases.cancelUnborn(requestId);
            return;
        }
        wait.leave();
        Link link = keeper.link();
        if (link != null && wait.callId != 0) {
            CancelAcquire.Builder cancel = CancelAcquire.newBuilder().setCallId(wait.callId);
            link.send(HoldRequest.newBuilder().setCancel(cancel).build());
        } else {
            all.remove(requestId);
        }
    }

    /** Where a call stands. */
    void queued(Queued queued) {
        About about = keeper.link().asked(queued.getCallId());
        Wait wait = about != null && about.kind == About.Kind.ACQUIRE ? all.get(about.key) : null;
        if (wait != null) {
            wait.place(Reading.place(queued));
        }
    }

    /** A call has got its locks. */
    void granted(Granted granted) {
        Link.Sent answered = keeper.link().answered(granted.getCallId());
        if (answered == null || answered.about().kind != About.Kind.ACQUIRE) {
            return;
        }
        Wait wait = all.remove(answered.about().key);
        if (wait == null) {
            // An earlier sending of the call was answered, too; its holder decides.
            return;
        }
        Long beat = keeper.link().beatSent(granted.getAsOfSequence());
        // The store was asked after both; after a pause the heartbeat is the older one.
        long sent = beat == null ? answered.at() : Math.max(answered.at(), beat);
        if (wait.under() == null) {
            keeper.leases.own(granted.getLease(), wait, sent);
        } else {
            keeper.leases.enter(granted.getLease(), wait);
        }
    }

    /** A call has got nothing, for good or for now. */
    void refused(String requestId, Refused said) {
        Wait wait = all.get(requestId);
        if (wait == null || wait.callId != said.getCallId()) {
            return;
        }
        wait.callId = 0;
        if (wait.isGone() || !Reading.isOpen(said)) {
            all.remove(requestId);
            wait.failed(wait.refused(said));
            return;
        }
        wait.why = Reading.refused(said);
        keeper.putOff(Moves.jittered(REPEAT_PAUSE), About.acquire(requestId));
        // A broker that goes away, or does not reach its store, is not the one to ask again.
        if (said.getReason() == ErrorReason.ERROR_REASON_DRAINING) {
            keeper.moves.leave(0);
        } else if (said.getReason() == ErrorReason.ERROR_REASON_STORE_UNAVAILABLE && keeper.brokers.count() > 1) {
            keeper.moves.leave(Moves.jittered(STORE_PAUSE));
        }
    }

    /** Nobody has answered these calls for too long. */
    void watch(long now) {
        List<Wait> late = all.values().stream()
                .filter(wait -> !wait.isGone() && now >= wait.until + REPEAT_LIMIT)
                .toList();
        for (Wait wait : late) {
            String why = keeper.link() == null ? keeper.moves.whyNot() : "the broker does not answer";
            wait.failed(wait.why == null ? new UnavailableException(why, null) : wait.why);
            cancel(wait.call().requestId());
        }
    }

    /**
     * The stream is gone, and with it every call of somebody who is gone, too: the broker gives up what does not come
     * again.
     */
    void offStream() {
        all.values().removeIf(Wait::isGone);
        all.values().forEach(wait -> wait.callId = 0);
    }

    /** Brings every call to a new stream. */
    void takeUp() {
        List.copyOf(all.keySet()).forEach(this::send);
    }

    /** Nothing comes of any of them. */
    void close(AcquireException why) {
        all.values().forEach(wait -> wait.failed(why));
        all.clear();
    }
}
