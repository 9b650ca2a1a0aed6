package dev.leasehold.internal;

import dev.leasehold.QueuePlace;
import dev.leasehold.error.AcquireException;
import dev.leasehold.error.HeldException;
import dev.leasehold.error.WaitTimeoutException;
import dev.leasehold.v1.Refused;

/** A call without an answer. */
final class Wait {
    /** The longest pause between heartbeats while a call waits. */
    private static final long WAITING = Times.millis(2_000);
    /** The shortest ttl that a broker grants. */
    private static final long TTL_MIN = Times.millis(1_000);

    private final Ask ask;
    /** How long it may wait in line. */
    final long until;
    /** How often heartbeats are to be sent while it waits. */
    final long interval;

    int attachNumber;
    /** As which it was sent last; 0: not on this stream. */
    long callId;
    /** Why it has no answer yet. */
    AcquireException why;

    private boolean isGone;

    Wait(Ask ask, long now) {
        this.ask = ask;
        until = now + ask.waitTimeout();
        long ttl = 3 * WAITING;
        if (call().request().hasTtl()) {
            ttl = Math.max(Times.nanosOf(call().request().getTtl()), TTL_MIN);
        }
        interval = Math.min(ttl / 3, WAITING);
    }

    Call call() {
        return ask.call();
    }

    /** The lease that it adds to, or null. */
    Grip under() {
        return ask.under();
    }

    /** Whether it is a call under this lease. */
    boolean isFor(String leaseId) {
        return under() != null && under().leaseId().equals(leaseId);
    }

    /** The caller is gone. */
    void leave() {
        isGone = true;
    }

    /** Whether the caller is gone, or was answered. */
    boolean isGone() {
        return isGone;
    }

    /** It has got its locks. If nobody takes them they are given back. */
    void granted(Grip grip) {
        if (isGone) {
            grip.giveBack(null);
            return;
        }
        isGone = true;
        ask.reply().granted(grip);
    }

    /** It has got nothing. */
    void failed(AcquireException error) {
        if (!isGone) {
            isGone = true;
            ask.reply().failed(error);
        }
    }

    /** Tells the caller where it stands. */
    void place(QueuePlace place) {
        if (!isGone) {
            ask.reply().place(place);
        }
    }

    /** Why it has got nothing. */
    AcquireException refused(Refused said) {
        AcquireException error = Reading.refused(said);
        if (error instanceof HeldException && ask.waitTimeout() > 0) {
            // It was late when it was repeated, and so was asked without waiting: to its caller it has waited.
            HeldException held = (HeldException) error;
            return new WaitTimeoutException(
                    said.getMessage(),
                    held.holders(),
                    held.queueLength(),
                    held.retryAfter().orElse(null));
        }
        return error;
    }
}
