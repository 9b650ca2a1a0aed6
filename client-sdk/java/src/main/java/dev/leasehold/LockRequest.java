package dev.leasehold;

import dev.leasehold.error.InvalidException;
import dev.leasehold.internal.Backend;
import dev.leasehold.internal.Call;
import dev.leasehold.internal.Callbacks;
import dev.leasehold.internal.Grip;
import dev.leasehold.internal.Times;
import dev.leasehold.v1.AcquireRequest;
import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.UnaryOperator;

/**
 * A lock, or several, about to be taken: by {@link #acquire}, {@link #tryAcquire()} or their asynchronous variants, as
 * often as wanted and by any number of threads. Each time makes a lease of its own. Immutable: each setting makes a
 * copy.
 */
public final class LockRequest {
    /** Waits for ever: {@code waitUpTo(LockRequest.FOREVER)}. */
    public static final Duration FOREVER = Duration.ofSeconds(Long.MAX_VALUE);

    /** The longest wait that a broker allows; a longer one is several of these. */
    static final long WAIT_MAX = TimeUnit.HOURS.toNanos(1);

    private static final Duration WAIT_DEFAULT = Duration.ofSeconds(30);

    private final Backend backend;
    private final List<Target> targets;
    /** All of the call but what is different each time. */
    private final AcquireRequest template;

    private final Duration wait;
    private final Lease under;
    private final Consumer<? super QueuePlace> onQueue;

    LockRequest(Backend backend, String owner, List<Target> targets) {
        this(backend, targets, template(owner), WAIT_DEFAULT, null, null);
    }

    private LockRequest(
            Backend backend,
            List<Target> targets,
            AcquireRequest template,
            Duration wait,
            Lease under,
            Consumer<? super QueuePlace> onQueue) {
        if (targets.isEmpty()) {
            throw new InvalidException("no lock is named", null);
        }
        this.backend = backend;
        this.targets = List.copyOf(targets);
        this.template = template;
        this.wait = wait;
        this.under = under;
        this.onQueue = onQueue;
    }

    private static AcquireRequest template(String owner) {
        AcquireRequest.Builder template = AcquireRequest.newBuilder();
        template.getOwnerBuilder().setId(owner);
        return template.build();
    }

    private LockRequest with(UnaryOperator<AcquireRequest.Builder> change) {
        AcquireRequest changed = change.apply(template.toBuilder()).build();
        return new LockRequest(backend, targets, changed, wait, under, onQueue);
    }

    private LockRequest each(UnaryOperator<Target> change) {
        List<Target> changed = targets.stream().map(change).toList();
        return new LockRequest(backend, changed, template, wait, under, onQueue);
    }

    /**
     * In another namespace than {@code default}; all locks of the call.
     *
     * @param namespace 1-63 characters of {@code [a-z0-9-]}
     * @return a copy
     */
    public LockRequest namespace(String namespace) {
        return each(target -> target.namespace(namespace));
    }

    /**
     * Shares the locks with others that share them.
     *
     * @return a copy
     */
    public LockRequest shared() {
        return each(Target::shared);
    }

    /**
     * Takes permits of a semaphore.
     *
     * @param permits so many
     * @param limit how many the lock has in all, 1-1000; 0: the limit in use
     * @return a copy
     */
    public LockRequest permits(int permits, int limit) {
        return each(target -> target.permits(permits, limit));
    }

    /**
     * How long the lock can be trusted after each heartbeat, and so how long others wait when this process dies.
     *
     * @param ttl 1 s to 60 s unless the broker says otherwise; default 10 s
     * @return a copy
     */
    public LockRequest ttl(Duration ttl) {
        return with(request -> request.setTtl(Times.proto(ttl)));
    }

    /**
     * How long {@link #acquire} waits in line. After each hour of a longer wait the place in line begins again at its
     * end.
     *
     * @param wait default 30 s; {@link #FOREVER} is allowed, zero does not wait
     * @return a copy
     */
    public LockRequest waitUpTo(Duration wait) {
        Times.proto(wait);
        return new LockRequest(backend, targets, template, wait, under, onQueue);
    }

    /**
     * Why the lock is taken, for whoever finds it held.
     *
     * @param reason at most 512 bytes
     * @return a copy
     */
    public LockRequest reason(String reason) {
        return with(request -> {
            request.getOwnerBuilder().setReason(reason);
            return request;
        });
    }

    /**
     * A label for lists and logs; at most 16.
     *
     * @param key 1-63 bytes
     * @param value its value
     * @return a copy
     */
    public LockRequest label(String key, String value) {
        return with(request -> {
            request.getOwnerBuilder().putLabels(key, value);
            return request;
        });
    }

    /**
     * The longest the lock may be held in all; then it is lost with {@link LostReason#MAX_HOLD}.
     *
     * @param maxHold counted from the grant
     * @return a copy
     */
    public LockRequest maxHold(Duration maxHold) {
        return with(request -> request.setMaxHold(Times.proto(maxHold)));
    }

    /**
     * Keeps the lock closed for so long after an expiry or revocation; for resources that cannot check fencing tokens.
     *
     * @param lockDelay at most 60 s
     * @return a copy
     */
    public LockRequest lockDelay(Duration lockDelay) {
        return with(request -> request.setLockDelay(Times.proto(lockDelay)));
    }

    /**
     * Frees the lock so long after this client's stream broke, even if this process may still trust it: faster after a
     * crash, but a holder behind a broken network may overlap with the next one.
     *
     * @param grace at most the ttl
     * @return a copy
     */
    public LockRequest disconnectGrace(Duration grace) {
        return with(request -> request.setDisconnectGrace(Times.proto(grace)));
    }

    /**
     * Adds the lock to a lease that is held, or enters a lock once more that the lease has. Both are lost together;
     * each gives back what it took itself.
     *
     * @param lease of the same client
     * @return a copy
     */
    public LockRequest under(Lease lease) {
        return new LockRequest(backend, targets, template, wait, Objects.requireNonNull(lease), onQueue);
    }

    /**
     * Tells the place in line, at first and when it changes, at most once a second.
     *
     * @param hook called by the thread that waits, or by one of the client's for an asynchronous acquire; what it
     *     throws ends the acquire
     * @return a copy
     */
    public LockRequest onQueue(Consumer<? super QueuePlace> hook) {
        return new LockRequest(backend, targets, template, wait, under, hook);
    }

    /**
     * Takes the lock, waiting in line.
     *
     * @return the lease, to be closed
     * @throws dev.leasehold.error.WaitTimeoutException if it was held for all of the wait, by whom it says
     * @throws dev.leasehold.error.UnavailableException up to 5 s after the wait if no broker could answer
     * @throws dev.leasehold.error.AcquireException if it cannot be had for another reason, one class for each
     * @throws InterruptedException if the thread is interrupted; the place in line is given up, and a lock that was
     *     granted at that moment is given back
     */
    public Lease acquire() throws InterruptedException {
        return new Waiter().waitFor(this, Times.nanos(wait), Function.identity(), null);
    }

    /**
     * Takes the lock if it is free.
     *
     * @return empty if somebody else has it
     * @throws dev.leasehold.error.AcquireException if it cannot be had for another reason, one class for each
     * @throws InterruptedException as {@link #acquire}
     */
    public Optional<Lease> tryAcquire() throws InterruptedException {
        return new Waiter().waitFor(this, 0, Optional::of, Optional.empty());
    }

    /**
     * Takes the lock if it is free at one of several times. Waiting in line, as {@link #acquire} does, is fair and
     * faster.
     *
     * @param attempts how often to try at most, 1 or more
     * @param every the pause between two, give or take a quarter
     * @return empty if somebody else has it
     * @throws InterruptedException as {@link #acquire}
     */
    public Optional<Lease> tryAcquire(int attempts, Duration every) throws InterruptedException {
        Optional<Lease> lease = tryAcquire();
        for (int attempt = 1; attempt < attempts && lease.isEmpty(); attempt++) {
            double jitter = ThreadLocalRandom.current().nextDouble(0.75, 1.25);
            TimeUnit.NANOSECONDS.sleep((long) (Times.nanos(every) * jitter));
            lease = tryAcquire();
        }
        return lease;
    }

    /**
     * {@link #acquire} without a thread that waits.
     *
     * @return done with the lease, or with the exceptions of {@link #acquire}. Cancelling it, or ending it in any other
     *     way, gives up the place in line; a lock that was granted at that moment is given back.
     */
    public CompletableFuture<Lease> acquireAsync() {
        return new Acquisition<>(this, Callbacks.EXECUTOR, Function.identity()).begin(Times.nanos(wait));
    }

    /**
     * {@link #tryAcquire()} without a thread that waits.
     *
     * @return as {@link #acquireAsync}; done with nothing if somebody else has the lock
     */
    public CompletableFuture<Optional<Lease>> tryAcquireAsync() {
        return new Acquisition<Optional<Lease>>(this, Callbacks.EXECUTOR, Optional::of)
                .ifHeld(Optional.empty())
                .begin(0);
    }

    Backend backend() {
        return backend;
    }

    /** The lease that it adds to, or null. */
    Grip under() {
        return under == null ? null : under.grip();
    }

    /** Who wants to know the place in line, or null. */
    Consumer<? super QueuePlace> queueHook() {
        return onQueue;
    }

    List<String> names() {
        return targets.stream().map(Target::toString).toList();
    }

    /** One call, with a request id of its own. */
    Call call(String traceparent) {
        AcquireRequest request =
                template.toBuilder().setRequestId(UUID.randomUUID().toString()).build();
        return new Call(request, targets.stream().map(Target::proto).toList(), traceparent);
    }

    @Override
    public String toString() {
        return "LockRequest" + names();
    }
}
