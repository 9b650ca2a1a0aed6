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
 * Failover of a session to another broker: after a broken stream, on request of a draining broker, or when a broker
 * does not answer. A working stream is closed only after another one has opened.
 */
final class Failover {
    private static final Logger LOG = System.getLogger("dev.leasehold");
    /** Timeout of connecting and opening a stream. */
    private static final long OPEN_TIMEOUT = Durations.millisToNanos(2_000);
    /**
     * Shortest time for which the client tries to open the first stream if no endpoint answers. A runtime that has just
     * started may be busy for longer than one attempt.
     */
    private static final long FIRST_CONNECT_MIN = Durations.millisToNanos(5_000);
    /**
     * Largest random delay before a reconnect, so that the clients of a failed broker do not reconnect at the same
     * moment.
     */
    private static final long RECONNECT_JITTER = Durations.millisToNanos(50);
    /** Age from which a stream counts as a success, so that earlier failures no longer count. */
    private static final long STABLE_AFTER = Durations.millisToNanos(1_000);

    private static final long BACKOFF_MIN = Durations.millisToNanos(100);
    private static final long BACKOFF_MAX = Durations.millisToNanos(1_000);

    /** Kind of a failure to open a stream. */
    private enum FailureKind {
        TIMEOUT,
        UNAUTHENTICATED,
        OTHER
    }

    /** A request to connect: the future that waits for the first stream, its start time, and the errors since. */
    private record ConnectRequest(CompletableFuture<Void> future, long startedAt, List<String> errors) {}

    private final Session session;
    private final StreamConnection.Listener listener = new ForwardingListener();
    /** Index of the endpoint of the current stream, or of the last attempt. */
    private int endpointIndex = -1;

    private Long connectAt;
    private StreamConnection connecting;
    /** Number of consecutive failed attempts. */
    private int failureCount;
    /** Number of consecutive attempts that failed with a rejected credential. */
    private int rejectionCount;

    private long openedAt;
    private String lastError = "not connected yet";
    private List<ConnectRequest> connectRequests = new ArrayList<>();
    private boolean isStopped;

    Failover(Session session) {
        this.session = session;
        openedAt = session.worker.now();
    }

    /** Listener that forwards events of a stream to the client thread. */
    private final class ForwardingListener implements StreamConnection.Listener {
        @Override
        public void onOpen(StreamConnection connection) {
            session.worker.post(() -> Failover.this.onOpen(connection));
        }

        @Override
        public void onOpenFailed(StreamConnection connection, String error, boolean isUnauthenticated) {
            session.worker.post(() -> {
                connection.shutDown();
                boolean isCurrentRejected = isUnauthenticated && connection.isCredentialCurrent();
                Failover.this.onOpenFailed(
                        connection, error, isCurrentRejected ? FailureKind.UNAUTHENTICATED : FailureKind.OTHER);
            });
        }

        @Override
        public void onMessage(StreamConnection connection, HoldResponse response) {
            session.worker.post(() -> session.onMessage(connection, response));
        }

        @Override
        public void onHealthResponse(StreamConnection connection) {
            session.worker.post(connection::recordAlive);
        }

        @Override
        public void onDisconnect(StreamConnection connection) {
            session.worker.post(() -> {
                connection.shutDown();
                session.onDisconnect(connection);
            });
        }
    }

    /** Returns a random time between half of {@code delay} and {@code delay}. */
    static long withJitter(long delay) {
        return ThreadLocalRandom.current().nextLong(delay / 2, delay + 1);
    }

    /** Returns true if no reconnect is planned. */
    boolean isStable() {
        return connectAt == null;
    }

    /** Returns the message about the last failure to connect. */
    String errorMessage() {
        return "no broker can be reached: " + lastError;
    }

    /** Completes a future once a stream is open, or with an error once every endpoint has failed. */
    void completeWhenConnected(CompletableFuture<Void> future) {
        if (session.connection() != null) {
            future.complete(null);
        } else {
            connectRequests.add(new ConnectRequest(future, session.worker.now(), new ArrayList<>()));
        }
    }

    /** Schedules a failover to another broker after {@code delay} nanoseconds. */
    void startFailover(long delay) {
        long now = session.worker.now();
        if (isStable()) {
            resetFailuresIfStable(now);
        }
        connectAt = connectAt == null ? now + delay : Math.min(connectAt, now + delay);
        pollConnect(now);
    }

    /** Schedules a reconnect after the stream has broken. */
    void onDisconnect() {
        lastError = "the stream broke";
        resetFailuresIfStable(session.worker.now());
        failureCount++;
        startFailover(Math.max(withJitter(RECONNECT_JITTER), backoff()));
    }

    /** Cancels an attempt that has timed out, and starts an attempt that is due. */
    void onTick(long now) {
        if (connecting != null && now >= connecting.startedAt() + OPEN_TIMEOUT) {
            connecting.cancel();
            onOpenFailed(
                    connecting,
                    connecting.endpointName() + ": no answer within " + OPEN_TIMEOUT / Durations.millisToNanos(1_000)
                            + " s",
                    FailureKind.TIMEOUT);
        }
        pollConnect(now);
    }

    /** Cancels all attempts for good. */
    void stop() {
        isStopped = true;
        connectAt = Durations.MAX_NANOS;
        if (connecting != null) {
            connecting.cancel();
            connecting = null;
        }
        List<ConnectRequest> requests = connectRequests;
        connectRequests = new ArrayList<>();
        requests.forEach(
                request -> request.future.completeExceptionally(new UnreachableException("the client is shut down")));
    }

    private void resetFailuresIfStable(long now) {
        // Earlier failures no longer count if the current stream was a success.
        if (now > openedAt + STABLE_AFTER) {
            failureCount = 0;
        }
    }

    private void pollConnect(long now) {
        if (isStopped || connecting != null || connectAt == null || now < connectAt) {
            return;
        }
        endpointIndex++;
        try {
            connecting = new StreamConnection(session.endpoints, endpointIndex, session.worker, listener);
        } catch (InvalidCredentialException e) {
            onOpenFailed(connecting, e.getMessage(), FailureKind.OTHER);
        }
    }

    private void onOpen(StreamConnection connection) {
        if (connection != connecting) {
            connection.cancel();
            return;
        }
        connecting = null;
        connectAt = null;
        rejectionCount = 0;
        openedAt = session.worker.now();
        connection.recordAlive();
        session.resumeAll(connection);
        List<ConnectRequest> requests = connectRequests;
        connectRequests = new ArrayList<>();
        requests.forEach(request -> request.future.complete(null));
    }

    private void onOpenFailed(StreamConnection connection, String error, FailureKind kind) {
        if (connection != connecting) {
            return;
        }
        connecting = null;
        if (kind == FailureKind.UNAUTHENTICATED) {
            LOG.log(Level.WARNING, "a broker rejected the credential: {0}", error);
            rejectionCount++;
        } else {
            LOG.log(Level.WARNING, "a broker does not answer: {0}", error);
            rejectionCount = 0;
        }
        failureCount++;
        lastError = error;
        boolean isUnauthenticated = rejectionCount >= session.endpoints.count();
        if (isUnauthenticated && session.connection() == null) {
            // Pending calls fail instead of being retried without end.
            session.pendingAcquires.failAll(new UnauthenticatedException(errorMessage(), null));
        }
        failConnectRequests(error, kind, isUnauthenticated);
    }

    private void failConnectRequests(String error, FailureKind kind, boolean isUnauthenticated) {
        connectAt = session.worker.now() + backoff();
        List<ConnectRequest> requests = connectRequests;
        connectRequests = new ArrayList<>();
        for (ConnectRequest request : requests) {
            request.errors.add(error);
            boolean isEarly =
                    kind == FailureKind.TIMEOUT && session.worker.now() < request.startedAt + FIRST_CONNECT_MIN;
            if (request.errors.size() >= session.endpoints.count() && !isEarly) {
                String message = String.join("; ", request.errors);
                request.future.completeExceptionally(
                        isUnauthenticated
                                ? new CredentialRefusedException(message)
                                : new UnreachableException(message));
            } else {
                connectRequests.add(request);
            }
        }
    }

    private long backoff() {
        // The first round tries every endpoint without a pause. Later rounds have longer and longer pauses.
        int rounds = failureCount / session.endpoints.count();
        if (rounds == 0) {
            return 0;
        }
        return withJitter(Math.min(BACKOFF_MIN << Math.min(rounds - 1, 16), BACKOFF_MAX));
    }
}
