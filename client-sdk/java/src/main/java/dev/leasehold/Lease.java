package dev.leasehold;

import dev.leasehold.error.LeaseLostException;
import dev.leasehold.internal.Callbacks;
import dev.leasehold.internal.LeaseHandle;
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
 * A lease on one or several locks. The client renews it with heartbeats until it is closed or lost, in a thread that
 * the program cannot block. A lease is not bound to a thread: any thread may use and close it. Thread-safe.
 *
 * <p>Losing the lease does not interrupt the work that it guards: call {@link #check} before each step that needs the
 * lock, or stop the work in a hook of {@link #onLost}.
 */
public final class Lease implements AutoCloseable {
    private static final Logger LOG = System.getLogger("dev.leasehold");
    private static final Loss RELEASED = new Loss(LostReason.RELEASED);

    private final LeaseHandle handle;
    private final CompletableFuture<Loss> lost = new CompletableFuture<>();
    private final Runnable onEnd = this::onValidityEnd;

    Lease(LeaseHandle handle) {
        this.handle = handle;
        handle.validity().onEnd(onEnd);
    }

    LeaseHandle handle() {
        return handle;
    }

    private void onValidityEnd() {
        if (!handle.isReleased()) {
            // Completed in another thread, because the calling thread may be the client thread, which must not block.
            lost.completeAsync(() -> handle.validity().loss(), Callbacks.EXECUTOR);
        }
    }

    /**
     * Returns the public identifier of the lease. It is no secret, and can be logged.
     *
     * @return the same id for all leases that were added to each other by {@link LockRequest#under}
     */
    public String leaseId() {
        return handle.leaseId();
    }

    /**
     * Returns the fencing token of the first lock. Send the fencing token with every write to the resource that the
     * lock protects, and have the resource reject smaller tokens.
     *
     * @return positive and below 2^53
     */
    public long fencingToken() {
        return handle.grants().isEmpty() ? 0 : handle.grants().get(0).fencingToken();
    }

    /**
     * Returns the fencing token of this lock.
     *
     * @param target the lock; its mode is ignored
     * @return empty if the acquire of this lease did not include the lock
     */
    public OptionalLong fencingToken(Target target) {
        LockName lock = target.lock();
        return handle.grants().stream()
                .filter(grant -> grant.lock().equals(lock))
                .mapToLong(LeaseHandle.LockGrant::fencingToken)
                .findFirst();
    }

    /**
     * Returns the fencing token of the lock with this name in the namespace {@code default}.
     *
     * @param name the lock
     * @return empty if the acquire of this lease did not include the lock
     */
    public OptionalLong fencingToken(String name) {
        return fencingToken(Target.of(name));
    }

    /**
     * Returns the locks of the acquire that returned this lease.
     *
     * @return each as {@code namespace/name}
     */
    public List<String> locks() {
        return handle.grants().stream().map(grant -> grant.lock().toString()).toList();
    }

    /**
     * Returns true if the lease is valid at this moment, by the client's own clock. Once false, the result stays false.
     *
     * @return false before another caller can be granted the lock
     */
    public boolean isValid() {
        return currentLoss() == null;
    }

    /**
     * Returns the time for which the lease stays valid if no further heartbeat is confirmed.
     *
     * @return zero once the lease has ended
     */
    public Duration remaining() {
        return handle.isReleased()
                ? Duration.ZERO
                : Duration.ofNanos(handle.validity().remaining());
    }

    /**
     * Returns the reason for which the lease has ended.
     *
     * @return empty while the lease is valid
     */
    public Optional<Loss> loss() {
        return Optional.ofNullable(currentLoss());
    }

    private Loss currentLoss() {
        Loss loss = handle.validity().loss();
        return loss == null && handle.isReleased() ? RELEASED : loss;
    }

    /**
     * Throws unless the lease is valid. Call it before a step that must not run without the lock.
     *
     * @throws LeaseLostException if the lease has ended
     */
    public void check() {
        Loss loss = currentLoss();
        if (loss != null) {
            throw new LeaseLostException(loss);
        }
    }

    /**
     * Returns a future that completes when the lease is lost: the broker reported its end, or no heartbeat was
     * confirmed in time, shortly before the lock can be granted to another caller.
     *
     * @return a copy, which the program may complete or cancel; it ends with a CancellationException when the lease is
     *     closed before it was lost
     */
    public CompletableFuture<Loss> lost() {
        return lost.copy();
    }

    /**
     * Registers a hook that is called once when the lease is lost: immediately if it is lost already, never if the
     * lease is closed before.
     *
     * @param hook called by a thread of the client that serves callbacks only, so that the hook may block
     * @return this lease
     */
    public Lease onLost(Consumer<? super Loss> hook) {
        lost.thenAcceptAsync(loss -> callHook(hook, loss), Callbacks.EXECUTOR);
        return this;
    }

    private void callHook(Consumer<? super Loss> hook, Loss loss) {
        try {
            hook.accept(loss);
        } catch (RuntimeException | Error e) {
            LOG.log(Level.WARNING, "the onLost hook of lease " + leaseId() + " failed", e);
        }
    }

    /**
     * Releases the locks of this lease and waits until the broker has confirmed the release. Idempotent. Leases that
     * share one lease by {@link LockRequest#under} release only the locks of their own acquire.
     *
     * <p>If the thread is interrupted, the method does not wait for the confirmation: the locks are released
     * nevertheless, and the thread stays interrupted.
     *
     * @throws LeaseLostException if the lease was lost before: the guarded work may have overlapped with the work of
     *     another holder
     * @throws dev.leasehold.error.UnconfirmedException if no broker has confirmed the release before the lease expired
     */
    @Override
    public void close() {
        CompletableFuture<Void> confirmation = startRelease();
        try {
            confirmation.get();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } catch (ExecutionException e) {
            Outcome.of(confirmation);
        }
    }

    /**
     * Releases the locks like {@link #close}.
     *
     * @throws LeaseLostException as {@link #close}
     */
    public void release() {
        close();
    }

    /**
     * Releases the locks like {@link #close}, without blocking the calling thread.
     *
     * @return completes when the broker has confirmed the release, or with the exceptions of {@link #close}
     */
    public CompletableFuture<Void> releaseAsync() {
        CompletableFuture<Void> future = new CompletableFuture<>();
        startRelease()
                .whenCompleteAsync(
                        (nothing, error) -> {
                            if (error == null) {
                                future.complete(null);
                            } else {
                                future.completeExceptionally(error);
                            }
                        },
                        Callbacks.EXECUTOR);
        return future;
    }

    private CompletableFuture<Void> startRelease() {
        Loss loss = handle.validity().loss();
        CompletableFuture<Void> confirmation = new CompletableFuture<>();
        if (!handle.release(confirmation)) {
            return CompletableFuture.completedFuture(null);
        }
        handle.validity().removeOnEnd(onEnd);
        if (loss != null) {
            return CompletableFuture.failedFuture(new LeaseLostException(loss));
        }
        lost.cancel(false);
        return confirmation;
    }

    @Override
    public String toString() {
        Loss loss = currentLoss();
        String state = loss == null ? "remaining=" + remaining() : "lost=" + loss;
        return "Lease[" + leaseId() + ", locks=" + locks() + ", fencingToken=" + fencingToken() + ", " + state + "]";
    }
}
