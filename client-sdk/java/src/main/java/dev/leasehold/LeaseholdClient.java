package dev.leasehold;

import dev.leasehold.error.InvalidOwnerException;
import dev.leasehold.internal.Backend;
import dev.leasehold.internal.Brokers;
import dev.leasehold.internal.Core;
import dev.leasehold.internal.Source;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;

/**
 * Makes locks. One for each process, used by any number of threads. A thread of its own keeps its leases alive, so
 * nothing that the program does can hold heartbeats up.
 */
public class LeaseholdClient implements AutoCloseable {
    private final Backend backend;
    private final String owner;
    /** Closes this client when the Java runtime shuts down, or null. */
    private Thread exitHook;

    /**
     * For this library's own kinds of clients.
     *
     * @param backend what keeps leases
     * @param owner the name of this process, or null for host name and process id
     */
    protected LeaseholdClient(Backend backend, String owner) {
        this.backend = backend;
        this.owner = owner == null ? standardOwner() : checked(owner);
    }

    private static String checked(String owner) {
        int length = owner.getBytes(StandardCharsets.UTF_8).length;
        if (length < 1 || length > 256) {
            throw new InvalidOwnerException();
        }
        return owner;
    }

    private static String standardOwner() {
        long pid = ProcessHandle.current().pid();
        try {
            return InetAddress.getLocalHost().getHostName() + ":" + pid;
        } catch (UnknownHostException e) {
            return "java:" + pid;
        }
    }

    /**
     * A client with settings.
     *
     * @param endpoints URLs, separated by commas, as in {@code http://a:7070,http://b:7070}. One is used at a time; the
     *     others are for when it does not answer any more.
     * @return the settings
     */
    public static Builder builder(String endpoints) {
        return new Builder(endpoints);
    }

    /**
     * A client that is connected, with the standard settings.
     *
     * @param endpoints as in {@link #builder}
     * @return to be closed
     * @throws dev.leasehold.error.ConnectionException if an endpoint is none, or no broker answers
     * @throws InterruptedException if the thread is interrupted meanwhile
     */
    public static LeaseholdClient connect(String endpoints) throws InterruptedException {
        return builder(endpoints).connect();
    }

    /** The settings of a client. */
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
         * The name of this process, shown to people who find a lock held.
         *
         * @param owner 1-256 bytes; default: host name and process id
         * @return this
         */
        public Builder owner(String owner) {
            this.owner = owner;
            return this;
        }

        /**
         * Shown to the brokers.
         *
         * @param bearerToken printable ASCII
         * @return this
         */
        public Builder bearerToken(String bearerToken) {
            this.bearerToken = bearerToken;
            return this;
        }

        /**
         * Shows the token in this file instead. It is looked at every second: when it has another token, that is shown
         * to the brokers, so that locks outlive the token that they were taken with.
         *
         * @param bearerTokenFile a token, and perhaps white space around it
         * @return this
         */
        public Builder bearerTokenFile(Path bearerTokenFile) {
            this.bearerTokenFile = bearerTokenFile;
            return this;
        }

        /**
         * Lets the bearer token go unencrypted to endpoints that are not https and not of this machine (127.0.0.0/8,
         * {@code ::1} and {@code localhost}): only where the network itself is trusted. Without it such an endpoint is
         * refused with {@link dev.leasehold.error.InsecureTokenException}.
         *
         * @param allowInsecureToken default: false
         * @return this
         */
        public Builder allowInsecureToken(boolean allowInsecureToken) {
            this.allowInsecureToken = allowInsecureToken;
            return this;
        }

        /**
         * How https endpoints are trusted.
         *
         * @param tls default: the root certificates of the Java runtime
         * @return this
         */
        public Builder tls(Tls tls) {
            this.tls = tls;
            return this;
        }

        /**
         * Gives everything back when the Java runtime shuts down, within 2 s. Off unless asked for: threads go on while
         * the runtime shuts down, and would work on without their locks.
         *
         * @param releaseAtExit whether
         * @return this
         */
        public Builder releaseAtExit(boolean releaseAtExit) {
            this.releaseAtExit = releaseAtExit;
            return this;
        }

        /**
         * A client that connects with its first call.
         *
         * @return to be closed
         * @throws dev.leasehold.error.ConnectionException if an endpoint or another setting is none
         */
        public LeaseholdClient build() {
            if (owner != null) {
                checked(owner);
            }
            Source source = new Source(bearerToken, bearerTokenFile);
            Brokers brokers = new Brokers(endpoints, tls, source, allowInsecureToken);
            LeaseholdClient client = new LeaseholdClient(Core.start(brokers), owner);
            if (releaseAtExit) {
                client.exitHook = new Thread(client::close, "leasehold-exit");
                Runtime.getRuntime().addShutdownHook(client.exitHook);
            }
            return client;
        }

        /**
         * A client that is connected.
         *
         * @return to be closed
         * @throws dev.leasehold.error.ConnectionException if a setting is none, or no broker answers
         * @throws InterruptedException if the thread is interrupted meanwhile
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
     * Makes sure that a broker answers now, instead of at the first call.
     *
     * @throws dev.leasehold.error.UnreachableException if none answers
     * @throws dev.leasehold.error.CredentialRefusedException if none accepts the credential
     * @throws InterruptedException if the thread is interrupted meanwhile
     */
    public void connect() throws InterruptedException {
        awaited(backend.connect());
    }

    /**
     * The name of this process, as people find it.
     *
     * @return 1-256 bytes
     */
    public String owner() {
        return owner;
    }

    /**
     * A lock, to be taken with settings.
     *
     * @param name 1-512 bytes without control characters
     * @return nothing is taken yet
     */
    public LockRequest lock(String name) {
        return lock(Target.of(name));
    }

    /**
     * A lock, to be taken with settings.
     *
     * @param target which, and how
     * @return nothing is taken yet
     */
    public LockRequest lock(Target target) {
        return new LockRequest(backend, owner, List.of(target));
    }

    /**
     * Several different locks, to be taken all or none under one lease, in an order that cannot deadlock.
     *
     * @param names 2-16
     * @return nothing is taken yet
     */
    public LockRequest lockAll(String... names) {
        return lockAll(Arrays.stream(names).map(Target::of).toList());
    }

    /**
     * Several different locks, to be taken all or none under one lease, in an order that cannot deadlock.
     *
     * @param targets 2-16
     * @return nothing is taken yet
     */
    public LockRequest lockAll(Collection<Target> targets) {
        return new LockRequest(backend, owner, List.copyOf(targets));
    }

    /**
     * Takes a lock, waiting in line for 30 s: {@code lock(name).acquire()}.
     *
     * @param name the lock
     * @return the lease, to be closed
     * @throws InterruptedException as {@link LockRequest#acquire}, with all its other exceptions
     */
    public Lease acquire(String name) throws InterruptedException {
        return lock(name).acquire();
    }

    /**
     * Takes a lock if it is free: {@code lock(name).tryAcquire()}.
     *
     * @param name the lock
     * @return empty if somebody else has it
     * @throws InterruptedException as {@link LockRequest#tryAcquire()}, with all its other exceptions
     */
    public Optional<Lease> tryAcquire(String name) throws InterruptedException {
        return lock(name).tryAcquire();
    }

    /**
     * Who holds a lock and how many wait, at this moment.
     *
     * @param name the lock
     * @return empty if nobody does either
     * @throws dev.leasehold.error.AcquireException if no broker can tell
     * @throws InterruptedException if the thread is interrupted meanwhile
     */
    public Optional<LockState> get(String name) throws InterruptedException {
        return get(Target.of(name));
    }

    /**
     * Who holds a lock and how many wait, at this moment.
     *
     * @param target the lock
     * @return empty if nobody does either
     * @throws dev.leasehold.error.AcquireException if no broker can tell
     * @throws InterruptedException if the thread is interrupted meanwhile
     */
    public Optional<LockState> get(Target target) throws InterruptedException {
        return awaited(backend.look(target.lock()));
    }

    /**
     * The election of one leader for a job.
     *
     * @param job the name of a lock that only candidates take
     * @return nothing is taken yet
     */
    public Election election(String job) {
        return new Election(this, Target.of(job));
    }

    /**
     * Gives up every wait, releases every lease, and ends the client: its calls fail from now on, and leases that are
     * left have lost their locks. Takes at most 2 s; what could not be released by then runs out. If the thread is
     * interrupted it does not wait for that, and stays interrupted.
     */
    @Override
    public void close() {
        forgetExit();
        try {
            awaited(backend.close());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private void forgetExit() {
        if (exitHook != null && exitHook != Thread.currentThread()) {
            try {
                Runtime.getRuntime().removeShutdownHook(exitHook);
            } catch (IllegalStateException e) {
                // It is under way.
            }
        }
    }

    private static <T> T awaited(CompletableFuture<T> future) throws InterruptedException {
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
