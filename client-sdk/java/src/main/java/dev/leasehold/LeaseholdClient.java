package dev.leasehold;

import dev.leasehold.error.InvalidException;
import dev.leasehold.error.InvalidOwnerException;
import dev.leasehold.internal.Backend;
import dev.leasehold.internal.ClientRuntime;
import dev.leasehold.internal.CredentialSource;
import dev.leasehold.internal.Endpoints;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;

/**
 * A client that makes lock requests. A process needs one client, which any number of threads may use. A thread of the
 * client renews its leases, so that the program's own threads cannot delay heartbeats.
 */
public class LeaseholdClient implements AutoCloseable {
    private final Backend backend;
    private final String owner;
    /** Shutdown hook that closes this client, or null. */
    private Thread exitHook;

    /**
     * Creates a client on a backend. For use by this library.
     *
     * @param backend connection to the brokers, or a fake broker
     * @param owner name of this process, or null for host name and process id
     */
    protected LeaseholdClient(Backend backend, String owner) {
        this.backend = backend;
        this.owner = owner == null ? defaultOwner() : validateOwner(owner);
    }

    private static String validateOwner(String owner) {
        int length = owner.getBytes(StandardCharsets.UTF_8).length;
        if (length < 1 || length > 256) {
            throw new InvalidOwnerException();
        }
        return owner;
    }

    private static String defaultOwner() {
        long pid = ProcessHandle.current().pid();
        try {
            return InetAddress.getLocalHost().getHostName() + ":" + pid;
        } catch (UnknownHostException e) {
            return "java:" + pid;
        }
    }

    /**
     * Returns a builder of a client.
     *
     * @param endpoints URLs, separated by commas, as in {@code http://a:7070,http://b:7070}. The client uses one
     *     endpoint at a time, and switches to the next one when the broker stops answering.
     * @return the builder, with default settings
     */
    public static Builder builder(String endpoints) {
        return new Builder(endpoints);
    }

    /**
     * Creates a client with default settings and connects it.
     *
     * @param endpoints as in {@link #builder}
     * @return the client, to be closed
     * @throws dev.leasehold.error.ConnectionException if an endpoint is invalid, or no broker answers
     * @throws InterruptedException if the thread is interrupted while it waits
     */
    public static LeaseholdClient connect(String endpoints) throws InterruptedException {
        return builder(endpoints).connect();
    }

    /** A builder of a client. */
    public static final class Builder {
        private final String endpoints;
        private String owner;
        private String bearerToken;
        private Path bearerTokenFile;
        private boolean allowInsecureToken;
        private Tls tls = Tls.DEFAULT;
        private boolean releaseAtExit;

        Builder(String endpoints) {
            this.endpoints = endpoints;
        }

        /**
         * Sets the name of this process, which is shown to people who find a lock held.
         *
         * @param owner 1-256 bytes; default: host name and process id
         * @return this
         */
        public Builder owner(String owner) {
            this.owner = owner;
            return this;
        }

        /**
         * Sets the bearer token that the client presents to the brokers.
         *
         * @param bearerToken printable ASCII
         * @return this
         */
        public Builder bearerToken(String bearerToken) {
            this.bearerToken = bearerToken;
            return this;
        }

        /**
         * Sets a file from which the bearer token is read, instead of a fixed token. The client reads the file every
         * second and presents a changed token to the brokers, so that leases outlive the token that they were acquired
         * with.
         *
         * @param bearerTokenFile a file with the token, optionally surrounded by white space
         * @return this
         */
        public Builder bearerTokenFile(Path bearerTokenFile) {
            this.bearerTokenFile = bearerTokenFile;
            return this;
        }

        /**
         * Allows sending the bearer token unencrypted to endpoints that are neither https nor loopback (127.0.0.0/8,
         * {@code ::1} and {@code localhost}). Use it only where the network itself is trusted. Otherwise such an
         * endpoint is rejected with {@link dev.leasehold.error.InsecureTokenException}.
         *
         * @param allowInsecureToken default: false
         * @return this
         */
        public Builder allowInsecureToken(boolean allowInsecureToken) {
            this.allowInsecureToken = allowInsecureToken;
            return this;
        }

        /**
         * Sets the TLS settings for https endpoints.
         *
         * @param tls default: the root certificates of the Java runtime
         * @return this
         */
        public Builder tls(Tls tls) {
            this.tls = tls;
            return this;
        }

        /**
         * Sets whether the client releases all leases within 2 s when the Java runtime shuts down. The default is
         * false, because threads continue to run during the shutdown and would work without their locks.
         *
         * @param releaseAtExit true to release all leases
         * @return this
         */
        public Builder releaseAtExit(boolean releaseAtExit) {
            this.releaseAtExit = releaseAtExit;
            return this;
        }

        /**
         * Creates the client, which connects with its first call.
         *
         * @return the client, to be closed
         * @throws dev.leasehold.error.ConnectionException if an endpoint or another setting is invalid
         */
        public LeaseholdClient build() {
            if (owner != null) {
                validateOwner(owner);
            }
            CredentialSource credentialSource = new CredentialSource(bearerToken, bearerTokenFile);
            Endpoints parsedEndpoints = new Endpoints(endpoints, tls, credentialSource, allowInsecureToken);
            LeaseholdClient client = new LeaseholdClient(ClientRuntime.start(parsedEndpoints), owner);
            if (releaseAtExit) {
                client.exitHook = new Thread(client::close, "leasehold-exit");
                Runtime.getRuntime().addShutdownHook(client.exitHook);
            }
            return client;
        }

        /**
         * Creates the client and connects it.
         *
         * @return the client, to be closed
         * @throws dev.leasehold.error.ConnectionException if a setting is invalid, or no broker answers
         * @throws InterruptedException if the thread is interrupted while it waits
         */
        public LeaseholdClient connect() throws InterruptedException {
            LeaseholdClient client = build();
            boolean isConnected = false;
            try {
                client.connect();
                isConnected = true;
                return client;
            } finally {
                if (!isConnected) {
                    client.close();
                }
            }
        }
    }

    /**
     * Connects to a broker now, instead of with the first call.
     *
     * @throws dev.leasehold.error.UnreachableException if no broker answers
     * @throws dev.leasehold.error.CredentialRefusedException if no broker accepts the credential
     * @throws InterruptedException if the thread is interrupted while it waits
     */
    public void connect() throws InterruptedException {
        await(backend.connect());
    }

    /**
     * Returns the name of this process, as others see it.
     *
     * @return 1-256 bytes
     */
    public String owner() {
        return owner;
    }

    /**
     * Returns a request for a lock, in exclusive mode.
     *
     * @param name 1-512 bytes without control characters
     * @return the request; nothing is acquired yet
     */
    public LockRequest lock(String name) {
        return lock(Target.of(name));
    }

    /**
     * Returns a request for a lock.
     *
     * @param target the lock and its mode
     * @return the request; nothing is acquired yet
     */
    public LockRequest lock(Target target) {
        return new LockRequest(backend, owner, List.of(target));
    }

    /**
     * Returns a request for several different locks under one lease, of which either all or none are acquired, in an
     * order that cannot deadlock.
     *
     * @param names 2-16
     * @return the request; nothing is acquired yet
     */
    public LockRequest lockAll(String... names) {
        return lockAll(Arrays.stream(names).map(Target::of).toList());
    }

    /**
     * Returns a request for several different locks under one lease, of which either all or none are acquired, in an
     * order that cannot deadlock.
     *
     * @param targets 2-16
     * @return the request; nothing is acquired yet
     */
    public LockRequest lockAll(Collection<Target> targets) {
        return new LockRequest(backend, owner, List.copyOf(targets));
    }

    /**
     * Acquires a lock, waiting in the queue for at most 30 s: {@code lock(name).acquire()}.
     *
     * @param name the lock
     * @return the lease, to be closed
     * @throws InterruptedException as {@link LockRequest#acquire}, with all its other exceptions
     */
    public Lease acquire(String name) throws InterruptedException {
        return lock(name).acquire();
    }

    /**
     * Acquires a lock if it is free: {@code lock(name).tryAcquire()}.
     *
     * @param name the lock
     * @return empty if another caller holds the lock, or the lock is closed
     * @throws InterruptedException as {@link LockRequest#tryAcquire()}, with all its other exceptions
     */
    public Optional<Lease> tryAcquire(String name) throws InterruptedException {
        return lock(name).tryAcquire();
    }

    /**
     * Returns the holders, the number of waiters, the closure and the permits of a lock at this moment.
     *
     * @param name the lock
     * @return empty if the lock has neither holders nor waiters, is not closed, and has no set limit
     * @throws dev.leasehold.error.AcquireException if no broker answers the request successfully
     * @throws InterruptedException if the thread is interrupted while it waits
     */
    public Optional<LockState> get(String name) throws InterruptedException {
        return get(Target.of(name));
    }

    /**
     * Returns the holders, the number of waiters, the closure and the permits of a lock at this moment.
     *
     * @param target the lock
     * @return empty if the lock has neither holders nor waiters, is not closed, and has no set limit
     * @throws dev.leasehold.error.AcquireException if no broker answers the request successfully
     * @throws InterruptedException if the thread is interrupted while it waits
     */
    public Optional<LockState> get(Target target) throws InterruptedException {
        return await(backend.getLockState(target.lock()));
    }

    /**
     * Sets the limit of a semaphore: {@code setLimit(Target.of(name), limit)}.
     *
     * @param name the lock
     * @param limit as in {@link #setLimit(Target, int)}
     * @return as {@link #setLimit(Target, int)}
     * @throws InterruptedException as {@link #setLimit(Target, int)}, with all its other exceptions
     */
    public OptionalInt setLimit(String name, int limit) throws InterruptedException {
        return setLimit(Target.of(name), limit);
    }

    /**
     * Sets the limit of a semaphore. Until {@link #removeLimit(Target)} removes the limit, callers follow it, whatever
     * limit they request, also while the lock is idle. A larger limit admits waiters at once. A smaller one revokes no
     * lease: new grants wait until enough permits are released, and waiters that request more permits than the limit
     * fail with {@link dev.leasehold.error.LimitMismatchException}.
     *
     * <p>If the broker has access rules, they must allow this client {@code set_limit} or {@code admin}. A call that
     * was interrupted, or that failed with {@link dev.leasehold.error.UnavailableException}, may have set the limit
     * nevertheless. It can be repeated.
     *
     * @param lock the lock, of which only namespace and name are used
     * @param limit number of permits that the lock has in all, 1-1000
     * @return the previous limit in use; empty if there was none
     * @throws dev.leasehold.error.PermissionDeniedException if the access rules do not allow the call
     * @throws dev.leasehold.error.LimitMismatchException if the lock is in use as an exclusive or shared lock
     * @throws dev.leasehold.error.InvalidException if the limit or the name is outside its range
     * @throws dev.leasehold.error.UnavailableException if no broker answers, or its store does not
     * @throws dev.leasehold.error.AcquireException if the request fails for another reason
     * @throws InterruptedException if the thread is interrupted while it waits
     */
    public OptionalInt setLimit(Target lock, int limit) throws InterruptedException {
        if (limit == 0) {
            throw new InvalidException("limit: must be 1 to 1000; removeLimit removes a limit", null);
        }
        return await(backend.setLimit(lock.lock(), limit));
    }

    /**
     * Removes the set limit of a semaphore: {@code removeLimit(Target.of(name))}.
     *
     * @param name the lock
     * @return as {@link #removeLimit(Target)}
     * @throws InterruptedException as {@link #removeLimit(Target)}, with all its other exceptions
     */
    public OptionalInt removeLimit(String name) throws InterruptedException {
        return removeLimit(Target.of(name));
    }

    /**
     * Removes the limit that was set with {@link #setLimit(Target, int)}. A lock in use keeps the limit until it is
     * idle; an idle lock takes the mode and the limit of the next call.
     *
     * @param lock the lock, of which only namespace and name are used
     * @return the limit that was set; empty if there was none
     * @throws InterruptedException as {@link #setLimit(Target, int)}, with all its other exceptions
     */
    public OptionalInt removeLimit(Target lock) throws InterruptedException {
        return await(backend.setLimit(lock.lock(), 0));
    }

    /**
     * Returns the election of one leader for a job.
     *
     * @param job name of a lock that only candidates acquire
     * @return the election; nothing is acquired yet
     */
    public Election election(String job) {
        return new Election(this, Target.of(job));
    }

    /**
     * Cancels all pending acquires, releases all leases and shuts the client down. Later calls of the client fail, and
     * leases that are still open are lost. Takes at most 2 s; a lease whose release was not confirmed within them
     * expires. If the thread is interrupted, the method does not wait, and the thread stays interrupted.
     */
    @Override
    public void close() {
        removeExitHook();
        try {
            await(backend.close());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private void removeExitHook() {
        if (exitHook != null && exitHook != Thread.currentThread()) {
            try {
                Runtime.getRuntime().removeShutdownHook(exitHook);
            } catch (IllegalStateException e) {
                // The runtime is shutting down.
            }
        }
    }

    private static <T> T await(CompletableFuture<T> future) throws InterruptedException {
        try {
            return future.get();
        } catch (ExecutionException e) {
            return Outcome.of(future);
        }
    }

    @Override
    public String toString() {
        return getClass().getSimpleName() + "[owner=" + owner + "]";
    }
}
