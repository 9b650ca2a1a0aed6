package dev.leasehold.internal;

import dev.leasehold.error.CredentialRefusedException;
import dev.leasehold.error.InvalidCredentialException;
import dev.leasehold.error.UnauthenticatedException;
import dev.leasehold.error.UnreachableException;
import dev.leasehold.v1.HoldResponse;
import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;

/**
 * From one broker to the next: after a break, when asked to, when nothing answers. A stream that still works is left
 * only once another one is open.
 */
final class Moves {
    private static final Logger LOG = System.getLogger("dev.leasehold");
    /** Establishing a connection, and opening a stream on it. */
    private static final long OPEN_LIMIT = Times.millis(2_000);
    /**
     * So long the first stream is waited for, though nothing has answered: a runtime that has just begun may be busy
     * with itself for longer than one attempt lasts.
     */
    private static final long FIRST_LIMIT = Times.millis(5_000);
    /** Clients of a broker that dies don't all come to the next one at the same moment. */
    private static final long JITTER = Times.millis(50);
    /** A stream that lived for so long was a success. */
    private static final long SETTLED = Times.millis(1_000);

    private static final long PAUSE_MIN = Times.millis(100);
    private static final long PAUSE_MAX = Times.millis(1_000);

    /** How a stream did not open. */
    private enum Failed {
        SILENT,
        DENIED,
        OTHERWISE
    }

    /** Somebody who waits for the first stream, since when, and why there was none since. */
    private record First(CompletableFuture<Void> told, long since, List<String> whys) {}

    private final Keeper keeper;
    private final Link.Listener listener = new Posting();
    /** The endpoint of the present stream, or the one that was tried last. */
    private int at = -1;

    private Long due;
    private Link opening;
    /** Endpoints that were tried one after the other in vain. */
    private int failures;
    /** Endpoints that did not accept the credential, one after the other. */
    private int denials;

    private long openedAt;
    private String why = "not connected yet";
    private List<First> first = new ArrayList<>();
    private boolean isOver;

    Moves(Keeper keeper) {
        this.keeper = keeper;
        openedAt = keeper.worker.now();
    }

    /** Has the client's thread told. */
    private final class Posting implements Link.Listener {
        @Override
        public void opened(Link link) {
            keeper.worker.post(() -> Moves.this.opened(link));
        }

        @Override
        public void failed(Link link, String why, boolean isDenied) {
            keeper.worker.post(() -> {
                link.shut();
                boolean isTrue = isDenied && link.showsNewest();
                Moves.this.failed(link, why, isTrue ? Failed.DENIED : Failed.OTHERWISE);
            });
        }

        @Override
        public void heard(Link link, HoldResponse response) {
            keeper.worker.post(() -> keeper.hear(link, response));
        }

        @Override
        public void alive(Link link) {
            keeper.worker.post(link::alive);
        }

        @Override
        public void broken(Link link) {
            keeper.worker.post(() -> {
                link.shut();
                keeper.broken(link);
            });
        }
    }

    /** Between half of it and all of it. */
    static long jittered(long time) {
        return ThreadLocalRandom.current().nextLong(time / 2, time + 1);
    }

    /** Whether nothing is planned. */
    boolean isSettled() {
        return due == null;
    }

    /** Why there is no stream. */
    String whyNot() {
        return "no broker can be reached: " + why;
    }

    /** Tells when there is a stream, or why there is none once every endpoint was tried. */
    void tellFirst(CompletableFuture<Void> told) {
        if (keeper.link() != null) {
            told.complete(null);
        } else {
            first.add(new First(told, keeper.worker.now(), new ArrayList<>()));
        }
    }

    /** Goes to another broker after a while. */
    void leave(long delay) {
        long now = keeper.worker.now();
        if (isSettled()) {
            begin(now);
        }
        due = due == null ? now + delay : Math.min(due, now + delay);
        openIfDue(now);
    }

    /** The stream is gone. */
    void broken() {
        why = "the stream broke";
        begin(keeper.worker.now());
        failures++;
        leave(Math.max(jittered(JITTER), pause()));
    }

    /** Looks at the time. */
    void tick(long now) {
        if (opening != null && now >= opening.begunAt() + OPEN_LIMIT) {
            opening.cut();
            failed(
                    opening,
                    opening.name() + ": no answer within " + OPEN_LIMIT / Times.millis(1_000) + " s",
                    Failed.SILENT);
        }
        openIfDue(now);
    }

    /** Goes nowhere any more. */
    void stop() {
        isOver = true;
        due = Times.MAX;
        if (opening != null) {
            opening.cut();
            opening = null;
        }
        List<First> told = first;
        first = new ArrayList<>();
        told.forEach(one -> one.told.completeExceptionally(new UnreachableException("the client is shut down")));
    }

    private void begin(long now) {
        // What failed before the present stream counts no more, if that was a success.
        if (now > openedAt + SETTLED) {
            failures = 0;
        }
    }

    private void openIfDue(long now) {
        if (isOver || opening != null || due == null || now < due) {
            return;
        }
        at++;
        try {
            opening = new Link(keeper.brokers, at, keeper.worker, listener);
        } catch (InvalidCredentialException e) {
            failed(opening, e.getMessage(), Failed.OTHERWISE);
        }
    }

    private void opened(Link link) {
        if (link != opening) {
            link.cut();
            return;
        }
        opening = null;
        due = null;
        denials = 0;
        openedAt = keeper.worker.now();
        link.alive();
        keeper.switchTo(link);
        List<First> told = first;
        first = new ArrayList<>();
        told.forEach(one -> one.told.complete(null));
    }

    private void failed(Link link, String reason, Failed how) {
        if (link != opening) {
            return;
        }
        opening = null;
        if (how == Failed.DENIED) {
            LOG.log(Level.WARNING, "a broker does not accept the credential: {0}", reason);
            denials++;
        } else {
            LOG.log(Level.WARNING, "a broker does not answer: {0}", reason);
            denials = 0;
        }
        failures++;
        why = reason;
        boolean isDenied = denials >= keeper.brokers.count();
        if (isDenied && keeper.link() == null) {
            // Calls are told so instead of being sent on and on.
            keeper.waits.close(new UnauthenticatedException(whyNot(), null));
        }
        tellWhyNot(reason, how, isDenied);
    }

    private void tellWhyNot(String reason, Failed how, boolean isDenied) {
        due = keeper.worker.now() + pause();
        List<First> waiting = first;
        first = new ArrayList<>();
        for (First one : waiting) {
            one.whys.add(reason);
            boolean isEarly = how == Failed.SILENT && keeper.worker.now() < one.since + FIRST_LIMIT;
            if (one.whys.size() >= keeper.brokers.count() && !isEarly) {
                String whys = String.join("; ", one.whys);
                one.told.completeExceptionally(
                        isDenied ? new CredentialRefusedException(whys) : new UnreachableException(whys));
            } else {
                first.add(one);
            }
        }
    }

    private long pause() {
        // Every endpoint is tried at once the first time, then all more and more slowly.
        int rounds = failures / keeper.brokers.count();
        if (rounds == 0) {
            return 0;
        }
        return jittered(Math.min(PAUSE_MIN << Math.min(rounds - 1, 16), PAUSE_MAX));
    }
}
