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

/** The releases of one stream's leases: of the whole lease with its last grip, before that of what one grip has. */
final class Releases {
    private static final long REPEAT_PAUSE = Times.millis(100);

    private final Keeper keeper;
    private long lastPart;
    /** Number of unary releases under way. */
    private int alone;
    /** Who waits for a release while the client is shut down. */
    private final List<CompletableFuture<Void>> closing = new ArrayList<>();

    Releases(Keeper keeper) {
        this.keeper = keeper;
    }

    /** A grip gives back what it has. */
    void giveBack(Grip grip, CompletableFuture<Void> asked) {
        CompletableFuture<Void> answer = asked == null ? new CompletableFuture<>() : asked;
        Owned owned = keeper.leases.get(grip.leaseId());
        if (owned == null) {
            // It was lost before.
            Loss loss = grip.trust().loss();
            answer.completeExceptionally(new LeaseLostException(loss == null ? new Loss(LostReason.CLOSED) : loss));
            keeper.leases.giveBackLost(grip.leaseId());
            return;
        }
        if (owned.release != null) {
            // A call under the lease was granted while all of it was given back.
            owned.release.answers().add(answer);
            return;
        }
        owned.grips--;
        if (owned.grips > 0) {
            lastPart++;
            owned.parts.put(lastPart, new Part(grip, answer));
            send(grip.leaseId(), lastPart);
        } else {
            giveBackAll(owned, answer);
        }
    }

    /** Nobody has anything of a lease any more. */
    void giveBackAll(Owned owned, CompletableFuture<Void> answer) {
        if (owned.trust != null) {
            owned.trust.end(new Loss(LostReason.RELEASED));
        }
        List<CompletableFuture<Void>> answers = new ArrayList<>();
        owned.parts.values().forEach(part -> answers.add(part.answer));
        owned.parts.clear();
        if (answer != null) {
            answers.add(answer);
        }
        owned.release = new Release(answers, Math.max(keeper.worker.now(), owned.validUntil) + owned.ttl / 2);
        send(owned.lease().getLeaseId(), 0);
    }

    /** Sends a release of a lease, or of the next lock of a part of it. */
    void send(String leaseId, long number) {
        Link link = keeper.link();
        Owned owned = keeper.leases.get(leaseId);
        if (link == null || owned == null) {
            return;
        }
        if (number != 0) {
            sendPart(link, owned, number);
        } else if (owned.isHere) {
            long callId = link.nextCall();
            HoldRelease.Builder release =
                    HoldRelease.newBuilder().setCallId(callId).setLeaseId(leaseId);
            link.call(
                    About.release(leaseId, 0),
                    HoldRequest.newBuilder().setRelease(release).build(),
                    callId);
        } else {
            // By itself, for a lease that was on another stream.
            ReleaseRequest request =
                    ReleaseRequest.newBuilder().setLease(owned.lease()).build();
            alone++;
            link.release(request, (response, error) -> keeper.worker.post(() -> releasedAlone(leaseId, error)));
        }
    }

    private void sendPart(Link link, Owned owned, long number) {
        Part part = owned.parts.get(number);
        // Elsewhere than on its stream it would be refused.
        if (part == null || !owned.isHere) {
            return;
        }
        String leaseId = owned.lease().getLeaseId();
        long callId = link.nextCall();
        HoldRelease.Builder release = HoldRelease.newBuilder()
                .setCallId(callId)
                .setLeaseId(leaseId)
                .setLock(part.next().proto())
                .setRequestId(part.requestId);
        link.call(
                About.release(leaseId, number),
                HoldRequest.newBuilder().setRelease(release).build(),
                callId);
    }

    private void releasedAlone(String leaseId, Throwable error) {
        alone--;
        if (error == null) {
            released(leaseId);
        } else {
            refused(leaseId, Reading.status(error));
        }
        keeper.closeLink();
    }

    /** Whether releases are under way that the end of the stream would cut. */
    boolean isAlone() {
        return alone > 0;
    }

    /** A release is confirmed. */
    void released(String leaseId) {
        Owned owned = keeper.leases.get(leaseId);
        if (owned != null && owned.release != null) {
            keeper.leases.forget(leaseId);
            owned.release.confirmed();
        }
    }

    /** A release is not confirmed, for good or for now. */
    void refused(String leaseId, Refused said) {
        if (Reading.isOpen(said)) {
            keeper.putOff(Moves.jittered(REPEAT_PAUSE), About.release(leaseId, 0));
            return;
        }
        Owned owned = keeper.leases.get(leaseId);
        if (owned == null || owned.release == null) {
            return;
        }
        keeper.leases.forget(leaseId);
        AcquireException why = Reading.refused(said);
        if (why instanceof LeaseLostException) {
            owned.release.lost(((LeaseLostException) why).loss());
        } else {
            owned.release.failed(new RefusedException(said.getMessage()));
        }
    }

    /** Nobody has confirmed a release while the lease could have lived. */
    void unconfirmed(String leaseId) {
        Release release = keeper.leases.get(leaseId).release;
        keeper.leases.forget(leaseId);
        release.failed(new UnconfirmedException());
    }

    /** A lock of a part is given back, with so many entries of it left. */
    void partReleased(About about, int holdCount) {
        Owned owned = keeper.leases.get(about.key);
        Part part = owned == null ? null : owned.parts.get(about.part);
        if (part == null) {
            return;
        }
        LockName done = part.done();
        if (holdCount == 0) {
            owned.dropGrant(done);
        }
        if (part.next() != null) {
            send(about.key, about.part);
        } else {
            owned.parts.remove(about.part);
            part.confirmed();
        }
    }

    /** A lock of a part is not given back, for good or for now. */
    void partRefused(About about, Refused said) {
        if (Reading.isOpen(said)) {
            keeper.putOff(Moves.jittered(REPEAT_PAUSE), about);
            return;
        }
        Owned owned = keeper.leases.get(about.key);
        Part part = owned == null ? null : owned.parts.remove(about.part);
        if (part != null) {
            part.failed(new RefusedException(said.getMessage()));
        }
    }

    /** The client is shut down: who waits for a release of this lease hears when the stream has ended. */
    void close(Owned owned) {
        owned.parts.values().forEach(part -> closing.add(part.answer));
        owned.parts.clear();
        if (owned.release != null) {
            closing.addAll(owned.release.answers());
        }
    }

    /** The stream was closed, with all that was on it, or could not be. */
    void closed(boolean isClosed) {
        for (CompletableFuture<Void> answer : closing) {
            if (isClosed) {
                answer.complete(null);
            } else {
                answer.completeExceptionally(new UnconfirmedException());
            }
        }
        closing.clear();
    }
}
