package dev.leasehold.internal;

import dev.leasehold.Loss;
import dev.leasehold.LostReason;
import dev.leasehold.error.ClosedException;
import dev.leasehold.v1.Done;
import dev.leasehold.v1.HoldResponse;
import dev.leasehold.v1.Refused;
import dev.leasehold.v1.Released;
import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * Keeps the leases and waits of one stream alive, on one broker after the other. Everything but the three orders is
 * done by the client's thread.
 */
final class Keeper implements Orders {
    private static final Logger LOG = System.getLogger("dev.leasehold");

    /** Something that was refused for now, and when to send it again. */
    private record Again(long at, About about) {}

    final Worker worker;
    final Brokers brokers;
    final Moves moves;
    final Waits waits;
    final Leases leases;
    final Releases releases;
    private Link link;
    private List<Again> again = new ArrayList<>();
    private Runnable closed;
    private long closeBy;
    private long closeLinkBy;
    private boolean isLinkClosed;
    private boolean isOver;

    Keeper(Worker worker, Brokers brokers) {
        this.worker = worker;
        this.brokers = brokers;
        moves = new Moves(this);
        waits = new Waits(this);
        leases = new Leases(this);
        releases = new Releases(this);
        moves.leave(0);
    }

    @Override
    public void acquire(Ask ask) {
        worker.post(() -> waits.ask(ask));
    }

    @Override
    public void cancel(String requestId) {
        worker.post(() -> waits.cancel(requestId));
    }

    @Override
    public void release(Grip grip, CompletableFuture<Void> answer) {
        worker.post(() -> releases.giveBack(grip, answer));
    }

    /** The present stream, or null. */
    Link link() {
        return link;
    }

    /** Whether it takes nothing on any more. */
    boolean isOver() {
        return isOver;
    }

    /** How many leases and waits it has. */
    int load() {
        return waits.count() + leases.count();
    }

    /** Whether nothing can run out. */
    boolean isIdle() {
        return load() == 0 && moves.isSettled() && closed == null;
    }

    /** Has something sent again after a while. */
    void putOff(long pause, About about) {
        again.add(new Again(worker.now() + pause, about));
    }

    /** A message of the broker. */
    void hear(Link from, HoldResponse response) {
        if (from != link) {
            return;
        }
        link.heard();
        switch (response.getMessageCase()) {
            case ACK -> leases.acknowledged(response.getAck());
            case GRANTED -> waits.granted(response.getGranted());
            case RELEASED -> released(response.getReleased());
            case QUEUED -> waits.queued(response.getQueued());
            case REFUSED -> refused(response.getRefused());
            case ATTACHED -> leases.attached(response.getAttached());
            case ENDED -> leases.lose(response.getEnded().getLeaseId(), Reading.ended(response.getEnded()));
            case RECONNECT -> moves.leave(Times.nanosOf(response.getReconnect().getDelay()));
            case DONE -> done(response.getDone());
            case RELEASE_REQUESTED ->
                LOG.log(
                        Level.INFO,
                        "the broker asks for lease {0}: {1}",
                        response.getReleaseRequested().getLeaseId(),
                        response.getReleaseRequested().getMessage());
            default -> {
                // Of a newer broker.
            }
        }
    }

    private void done(Done said) {
        Link.Sent answered = link.answered(said.getCallId());
        if (answered != null && answered.about().kind == About.Kind.CREDENTIAL) {
            link.shown(true);
        }
    }

    private void released(Released said) {
        Link.Sent answered = link.answered(said.getCallId());
        if (answered == null || answered.about().kind != About.Kind.RELEASE) {
            return;
        }
        About about = answered.about();
        if (about.part == 0) {
            releases.released(about.key);
        } else {
            releases.partReleased(about, said.getHoldCount());
        }
    }

    private void refused(Refused said) {
        Link.Sent answered = link.answered(said.getCallId());
        if (answered == null) {
            return;
        }
        About about = answered.about();
        switch (about.kind) {
            case ACQUIRE -> waits.refused(about.key, said);
            case ATTACH -> leases.attachRefused(about.key, said);
            case RELEASE -> {
                if (about.part == 0) {
                    releases.refused(about.key, said);
                } else {
                    releases.partRefused(about, said);
                }
            }
            case CREDENTIAL -> {
                // The broker may hear of its key, or of it, in a moment.
                LOG.log(Level.WARNING, "a broker does not accept another credential: {0}", said.getMessage());
                link.shown(false);
            }
            case NOTHING -> {
                // Nobody waits for it.
            }
        }
    }

    /** Looks at the time. */
    void tick(long now) {
        if (closed != null) {
            closeLink();
            if (now >= closeBy) {
                end(false);
            }
            return;
        }
        leases.watchValidity(now);
        waits.watch(now);
        leases.watchSilence(now);
        leases.beatIfDue(now);
        sendAgain(now);
        moves.tick(now);
        if (link != null) {
            link.watchCredential(now);
        }
        if (link != null && !link.watch(now)) {
            Link dead = link;
            dead.cut();
            broken(dead);
        }
    }

    private void sendAgain(long now) {
        if (link == null) {
            return;
        }
        List<Again> all = again;
        again = new ArrayList<>();
        for (Again one : all) {
            if (one.at > now) {
                again.add(one);
            } else {
                send(one.about);
            }
        }
    }

    private void send(About about) {
        switch (about.kind) {
            case ACQUIRE -> waits.send(about.key);
            case ATTACH -> leases.attach(about.key);
            case RELEASE -> releases.send(about.key, about.part);
            case CREDENTIAL, NOTHING -> {
                // Nothing of it is ever put off.
            }
        }
    }

    /** Gives everything back, until then, and ends. */
    void close(long by, Runnable done) {
        isOver = true;
        waits.close(new ClosedException());
        leases.close(new Loss(LostReason.CLOSED));
        moves.stop();
        closed = done;
        closeBy = by;
        long now = worker.now();
        closeLinkBy = now + (by - now) / 2;
        if (link == null) {
            end(false);
        } else {
            closeLink();
        }
    }

    /**
     * Closes the stream once the keeper is closing and no unary release is under way, or after half of the shutdown
     * time.
     */
    void closeLink() {
        boolean isDue = !releases.isAlone() || worker.now() >= closeLinkBy;
        if (closed != null && link != null && !isLinkClosed && isDue) {
            isLinkClosed = true;
            link.close();
        }
    }

    /** A stream is gone. */
    void broken(Link gone) {
        if (gone != link) {
            return;
        }
        link = null;
        if (closed != null) {
            end(true);
            return;
        }
        LOG.log(Level.DEBUG, "the lease stream broke");
        offStream();
        moves.broken();
    }

    /** Brings everything to a new stream. What the old one would still say is said again here. */
    void switchTo(Link next) {
        Link old = link;
        link = next;
        if (old != null) {
            old.cut();
        }
        offStream();
        leases.takeUp();
        waits.takeUp();
    }

    private void offStream() {
        // Nothing is sent again that was for another stream.
        again.clear();
        waits.offStream();
        leases.offStream();
    }

    private void end(boolean isClosed) {
        Runnable done = closed;
        closed = () -> {};
        closeBy = Times.MAX;
        if (link != null) {
            link.cut();
            link = null;
        }
        releases.closed(isClosed);
        done.run();
    }
}
