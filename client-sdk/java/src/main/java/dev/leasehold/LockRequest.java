package dev.leasehold;

import dev.leasehold.error.InvalidException;
import dev.leasehold.internal.AcquireParams;
import dev.leasehold.internal.Backend;
import dev.leasehold.internal.Callbacks;
import dev.leasehold.internal.Durations;
import dev.leasehold.internal.LeaseHandle;
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
 * A request for one or several locks, made by {@link #acquire}, {@link #tryAcquire()} or their asynchronous variants.
 * It may be used any number of times and by any number of threads. Each use makes a separate lease. Immutable: each
 * setting returns a copy.
 */
public final class LockRequest {
    /** Unlimited wait, as in {@code waitUpTo(LockRequest.FOREVER)}. */
    public static final Duration FOREVER = Duration.ofSeconds(Long.MAX_VALUE);

    /** Longest wait that a broker allows for one call, in nanoseconds. A longer wait is split into several calls. */
    static final long WAIT_MAX = TimeUnit.HOURS.toNanos(1);

    private static final Duration WAIT_DEFAULT = Duration.ofSeconds(30);

    private final Backend backend;
    private final List<Target> targets;
    /** Fields of the call that are the same for every use of this request. */
    private final AcquireRequest template;

    private final Duration wait;
    private final Lease under;
    private final Consumer<? super QueuePosition> onQueue;

    LockRequest(Backend backend, String owner, List<Target> targets) {
        this(backend, targets, template(owner), WAIT_DEFAULT, null, null);
    }

    private LockRequest(
            Backend backend,
            List<Target> targets,
            AcquireRequest template,
            Duration wait,
            Lease under,
            Consumer<? super QueuePosition> onQueue) {
        if (targets.isEmpty()) {
            throw new InvalidException("a request must name at least one lock", null);
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

    private LockRequest withTemplate(UnaryOperator<AcquireRequest.Builder> change) {
        AcquireRequest changed = change.apply(template.toBuilder()).build();
        return new LockRequest(backend, targets, changed, wait, under, onQueue);
    }

    private LockRequest withTargets(UnaryOperator<Target> change) {
        List<Target> changed = targets.stream().map(change).toList();
        return new LockRequest(backend, changed, template, wait, under, onQueue);
    }

    /**
     * Sets the namespace of all locks of the request.
     *
     * @param namespace 1-63 characters of {@code [a-z0-9-]}
     * @return a copy
     */
    public LockRequest namespace(String namespace) {
        return withTargets(target -> target.namespace(namespace));
    }

    /**
     * Requests the locks in shared mode, together with other shared holders.
     *
     * @return a copy
     */
    public LockRequest shared() {
        return withTargets(Target::shared);
    }

    /**
     * Requests permits of a semaphore.
     *
     * @param permits number of permits to acquire
     * @param limit number of permits that the lock has in all, 1-1000; 0: the limit in use
     * @return a copy
     */
    public LockRequest permits(int permits, int limit) {
        return withTargets(target -> target.permits(permits, limit));
    }

    /**
     * Sets the time for which the lease is valid after each confirmed heartbeat. Other callers wait about as long when
     * this process dies.
     *
     * @param ttl 1 s to 60 s unless the broker is configured otherwise; default 10 s
     * @return a copy
     */
    public LockRequest ttl(Duration ttl) {
        return withTemplate(request -> request.setTtl(Durations.toProto(ttl)));
    }

    /**
     * Sets the longest time that {@link #acquire} waits in the queue. A wait of more than one hour consists of several
     * calls: after each hour the request is enqueued again at the end of the queue.
     *
     * @param wait default 30 s; {@link #FOREVER} is allowed, zero does not wait
     * @return a copy
     */
    public LockRequest waitUpTo(Duration wait) {
        Durations.toProto(wait);
        return new LockRequest(backend, targets, template, wait, under, onQueue);
    }

    /**
     * Sets the reason of the acquire, which callers see that find the lock held.
     *
     * @param reason at most 512 bytes
     * @return a copy
     */
    public LockRequest reason(String reason) {
        return withTemplate(request -> {
            request.getOwnerBuilder().setReason(reason);
            return request;
        });
    }

    /**
     * Adds a label of the owner, for lists and logs. A request has at most 16 labels.
     *
     * @param key 1-63 bytes
     * @param value its value
     * @return a copy
     */
    public LockRequest label(String key, String value) {
        return withTemplate(request -> {
            request.getOwnerBuilder().putLabels(key, value);
            return request;
        });
    }

    /**
     * Sets the longest time for which the lock may be held. After it the lease is lost with
     * {@link LostReason#MAX_HOLD}.
     *
     * @param maxHold counted from the grant
     * @return a copy
     */
    public LockRequest maxHold(Duration maxHold) {
        return withTemplate(request -> request.setMaxHold(Durations.toProto(maxHold)));
    }

    /**
     * Sets the time for which the lock grants nothing after the lease has expired or was revoked. Use it for resources
     * that cannot check fencing tokens.
     *
     * @param lockDelay at most 60 s
     * @return a copy
     */
    public LockRequest lockDelay(Duration lockDelay) {
        return withTemplate(request -> request.setLockDelay(Durations.toProto(lockDelay)));
    }

    /**
     * Sets the time after which the broker releases the lock when the lease stream of this client breaks, even if the
     * lease is still valid. The lock is free sooner after a crash, but a holder behind a broken network may overlap
     * with the next one.
     *
     * @param grace at most the ttl
     * @return a copy
     */
    public LockRequest disconnectGrace(Duration grace) {
        return withTemplate(request -> request.setDisconnectGrace(Durations.toProto(grace)));
    }

    /**
     * Keeps the lock closed until this time after the grant, however the lease ends: for a job that runs once a period.
     * A job that died is not run again within the period, unless an operator opens the lock.
     *
     * @param period not shorter than the ttl; the broker allows at most a day by default
     * @return a copy
     */
    public LockRequest atLeast(Duration period) {
        return withTemplate(request -> request.setAtLeast(Durations.toProto(period)));
    }

    /**
     * Adds the lock to an existing lease, or enters a lock again that the lease holds. Both leases are lost together;
     * each of them releases only the locks of the acquire that returned it.
     *
     * @param lease of the same client
     * @return a copy
     */
    public LockRequest under(Lease lease) {
        return new LockRequest(backend, targets, template, wait, Objects.requireNonNull(lease), onQueue);
    }

    /**
     * Sets a hook that is called with the queue position when the request is enqueued and whenever the position, the
     * holders or the closure change, at most once a second.
     *
     * @param hook called by the waiting thread, or by a thread of the client for an asynchronous acquire; an exception
     *     of the hook ends the acquire
     * @return a copy
     */
    public LockRequest onQueue(Consumer<? super QueuePosition> hook) {
        return new LockRequest(backend, targets, template, wait, under, hook);
    }

    /**
     * Acquires the lock, waiting in the queue if necessary.
     *
     * @return the lease, to be closed
     * @throws dev.leasehold.error.WaitTimeoutException if other callers held the lock during the whole wait; names
     *     holders
     * @throws dev.leasehold.error.UnavailableException up to 5 s after the wait if no broker could answer
     * @throws dev.leasehold.error.AcquireException if the lock could not be acquired for another reason; each reason
     *     has its own subclass
     * @throws InterruptedException if the thread is interrupted; the request leaves the queue, and a lock that was
     *     granted at that moment is released
     */
    public Lease acquire() throws InterruptedException {
        return new Waiter().awaitResult(this, Durations.toNanos(wait), Function.identity(), null);
    }

    /**
     * Acquires the lock if it is free, without waiting.
     *
     * @return empty if another caller holds the lock, or the lock is closed
     * @throws dev.leasehold.error.AcquireException if the lock could not be acquired for another reason; each reason
     *     has its own subclass
     * @throws InterruptedException as {@link #acquire}
     */
    public Optional<Lease> tryAcquire() throws InterruptedException {
        return new Waiter().awaitResult(this, 0, Optional::of, Optional.empty());
    }

    /**
     * Tries several times to acquire the lock without waiting in the queue. {@link #acquire}, which waits in the queue,
     * is fair and faster.
     *
     * @param attempts largest number of attempts, 1 or more
     * @param every pause between two attempts, varied at random by up to a quarter
     * @return empty if another caller held the lock, or the lock was closed, at every attempt
     * @throws InterruptedException as {@link #acquire}
     */
    public Optional<Lease> tryAcquire(int attempts, Duration every) throws InterruptedException {
        Optional<Lease> lease = tryAcquire();
        for (int attempt = 1; attempt < attempts && lease.isEmpty(); attempt++) {
            double jitter = ThreadLocalRandom.current().nextDouble(0.75, 1.25);
            TimeUnit.NANOSECONDS.sleep((long) (Durations.toNanos(every) * jitter));
            lease = tryAcquire();
        }
        return lease;
    }

    /**
     * Acquires the lock like {@link #acquire}, without blocking the calling thread.
     *
     * @return completes with the lease, or with the exceptions of {@link #acquire}. Cancelling or completing it in any
     *     other way cancels the request; a lock that was granted at that moment is released.
     */
    public CompletableFuture<Lease> acquireAsync() {
        return new Acquisition<>(this, Callbacks.EXECUTOR, Function.identity()).start(Durations.toNanos(wait));
    }

    /**
     * Acquires the lock if it is free, like {@link #tryAcquire()}, without blocking the calling thread.
     *
     * @return as {@link #acquireAsync}; completes with an empty value if another caller holds the lock, or the lock is
     *     closed
     */
    public CompletableFuture<Optional<Lease>> tryAcquireAsync() {
        return new Acquisition<Optional<Lease>>(this, Callbacks.EXECUTOR, Optional::of)
                .withResultIfHeld(Optional.empty())
                .start(0);
    }

    Backend backend() {
        return backend;
    }

    /** Returns the lease that the request adds locks to, or null. */
    LeaseHandle under() {
        return under == null ? null : under.handle();
    }

    /** Returns the hook for queue positions, or null. */
    Consumer<? super QueuePosition> queueHook() {
        return onQueue;
    }

    List<String> lockNames() {
        return targets.stream().map(Target::toString).toList();
    }

    /** Builds one call, with a fresh request id. */
    AcquireParams createParams(String traceparent) {
        AcquireRequest request =
                template.toBuilder().setRequestId(UUID.randomUUID().toString()).build();
        return new AcquireParams(request, targets.stream().map(Target::proto).toList(), traceparent);
    }

    @Override
    public String toString() {
        return "LockRequest" + lockNames();
    }
}
