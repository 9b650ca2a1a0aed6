package dev.leasehold;

import dev.leasehold.error.LeaseLostException;
import dev.leasehold.internal.Callbacks;
import dev.leasehold.internal.Grip;
import dev.leasehold.internal.LockName;
import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.function.Consumer;

/**
 * A lock that is held, or several under one lease. The client sends heartbeats for it until it is closed or lost, in a
 * thread that the program cannot block. It belongs to no thread: whoever has it may use and close it.
 *
 * <p>Nothing stops a thread from outside: call {@link #check} before each step that needs the lock, or have
 * {@link #onLost} stop the work.
 */
public final class Lease implements AutoCloseable {
    private static final Logger LOG = System.getLogger("dev.leasehold");
    private static final Loss RELEASED = new Loss(LostReason.RELEASED);

    private final Grip grip;
    private final CompletableFuture<Loss> lost = new CompletableFuture<>();
    private final Runnable onEnd = this::ended;

    Lease(Grip grip) {
        this.grip = grip;
        grip.trust().onEnd(onEnd);
    }

    Grip grip() {
        return grip;
    }

    private void ended() {
        if (!grip.isGivenBack()) {
            // Not here: whoever notices may be the thread that keeps leases.
            lost.completeAsync(() -> grip.trust().loss(), Callbacks.EXECUTOR);
        }
    }

    /**
     * Public identifier of the lease: safe to log and to show.
     *
     * @return the same for all that was taken under it
     */
    public String leaseId() {
        return grip.leaseId();
    }

    /**
     * Send it with every write to what the lock protects, and refuse smaller ones there. Of the first lock, if there
     * are several.
     *
     * @return positive and below 2^53
     */
    public long fencingToken() {
        return grip.tokens().isEmpty() ? 0 : grip.tokens().get(0).fencingToken();
    }

    /**
     * The fencing token of this lock.
     *
     * @param target the lock; how it is held is of no interest
     * @return empty if the lease was not taken for it
     */
    public OptionalLong fencingToken(Target target) {
        LockName wanted = target.lock();
        return grip.tokens().stream()
                .filter(token -> token.lock().equals(wanted))
                .mapToLong(Grip.Token::fencingToken)
                .findFirst();
    }

    /**
     * The fencing token of the lock with this name in the default namespace.
     *
     * @param name the lock
     * @return empty if the lease was not taken for it
     */
    public OptionalLong fencingToken(String name) {
        return fencingToken(Target.of(name));
    }

    /**
     * The locks.
     *
     * @return each as {@code namespace/name}
     */
    public List<String> locks() {
        return grip.tokens().stream().map(token -> token.lock().toString()).toList();
    }

    /**
     * Whether the lock can be trusted at this moment, by the clock. Once false it stays so.
     *
     * @return false before anybody else can get the lock
     */
    public boolean isValid() {
        return over() == null;
    }

    /**
     * How long the lock can be trusted if no heartbeat is confirmed from now on.
     *
     * @return zero once it is over
     */
    public Duration remaining() {
        return grip.isGivenBack()
                ? Duration.ZERO
                : Duration.ofNanos(grip.trust().remaining());
    }

    /**
     * Why the lock is not held any more.
     *
     * @return empty while it is held
     */
    public Optional<Loss> loss() {
        return Optional.ofNullable(over());
    }

    private Loss over() {
        Loss loss = grip.trust().loss();
        return loss == null && grip.isGivenBack() ? RELEASED : loss;
    }

    /**
     * For a step that must not be done without the lock.
     *
     * @throws LeaseLostException if it is not held any more
     */
    public void check() {
        Loss loss = over();
        if (loss != null) {
            throw new LeaseLostException(loss);
        }
    }

    /**
     * Done when the lock is lost: the broker said so, or no heartbeat was confirmed for so long that it could go to
     * somebody else a little later.
     *
     * @return a copy that anybody may change; it ends with a CancellationException when the lease is closed before it
     *     was lost
     */
    public CompletableFuture<Loss> lost() {
        return lost.copy();
    }

    /**
     * Calls the hook once the lock is lost, at once if it is already, and never if the lease is closed before.
     *
     * @param hook called by a thread of the client's that nothing else waits for, so that it may block
     * @return this lease
     */
    public Lease onLost(Consumer<? super Loss> hook) {
        lost.thenAcceptAsync(loss -> tell(hook, loss), Callbacks.EXECUTOR);
        return this;
    }

    private void tell(Consumer<? super Loss> hook, Loss loss) {
        try {
            hook.accept(loss);
        } catch (RuntimeException | Error e) {
            LOG.log(Level.WARNING, "a hook for the loss of lease " + leaseId(), e);
        }
    }

    /**
     * Gives the lock back and waits until the broker has confirmed it. Safe to repeat. A lease that was made
     * {@code under} another one, and that one, give back only what their own call took.
     *
     * <p>If the thread is interrupted it does not wait: the lock is given back all the same, and the thread stays
     * interrupted.
     *
     * @throws LeaseLostException if the lock was lost before: what it guarded may have overlapped with another holder's
     *     work
     * @throws dev.leasehold.error.UnconfirmedException if no broker could be reached meanwhile
     */
    @Override
    public void close() {
        CompletableFuture<Void> released = give();
        try {
            released.get();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } catch (ExecutionException e) {
            Outcome.of(released);
        }
    }

    /**
     * {@link #close} by another name.
     *
     * @throws LeaseLostException as {@link #close}
     */
    public void release() {
        close();
    }

    /**
     * {@link #close} without a thread that waits.
     *
     * @return done when the broker has confirmed it, or with the exceptions of {@link #close}
     */
    public CompletableFuture<Void> releaseAsync() {
        CompletableFuture<Void> told = new CompletableFuture<>();
        give().whenCompleteAsync(
                        (nothing, error) -> {
                            if (error == null) {
                                told.complete(null);
                            } else {
                                told.completeExceptionally(error);
                            }
                        },
                        Callbacks.EXECUTOR);
        return told;
    }

    private CompletableFuture<Void> give() {
        Loss loss = grip.trust().loss();
        CompletableFuture<Void> answer = new CompletableFuture<>();
        if (!grip.giveBack(answer)) {
            return CompletableFuture.completedFuture(null);
        }
        grip.trust().offEnd(onEnd);
        if (loss != null) {
            return CompletableFuture.failedFuture(new LeaseLostException(loss));
        }
        lost.cancel(false);
        return answer;
    }

    @Override
    public String toString() {
        Loss loss = over();
        String state = loss == null ? "remaining=" + remaining() : "lost=" + loss;
        return "Lease[" + leaseId() + ", locks=" + locks() + ", fencingToken=" + fencingToken() + ", " + state + "]";
    }
}
