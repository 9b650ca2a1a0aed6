package dev.leasehold.internal;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;

/** What one acquire has got: the locks, the trust in their lease, and the way to give them back. */
public final class Grip {
    /** A lock that the call took or entered, with its fencing token. */
    public record Token(LockName lock, long fencingToken) {}

    private final String leaseId;
    private final List<Token> tokens;
    private final String requestId;
    private final Trust trust;
    private final Orders orders;
    private final long since = System.nanoTime();
    private final AtomicBoolean isGivenBack = new AtomicBoolean();

    public Grip(String leaseId, List<Token> tokens, String requestId, Trust trust, Orders orders) {
        this.leaseId = leaseId;
        this.tokens = List.copyOf(tokens);
        this.requestId = requestId;
        this.trust = trust;
        this.orders = orders;
    }

    public String leaseId() {
        return leaseId;
    }

    public List<Token> tokens() {
        return tokens;
    }

    public String requestId() {
        return requestId;
    }

    public Trust trust() {
        return trust;
    }

    public Orders orders() {
        return orders;
    }

    /** Whether somebody has given it back. */
    public boolean isGivenBack() {
        return isGivenBack.get();
    }

    /** Gives it back, once. False if that was done before; then nobody answers. The answer may be null. */
    public boolean giveBack(CompletableFuture<Void> answer) {
        if (!isGivenBack.compareAndSet(false, true)) {
            return false;
        }
        Telemetry.held(System.nanoTime() - since, trust.loss() != null);
        orders.release(this, answer);
        return true;
    }
}
