package dev.leasehold.internal;

import dev.leasehold.LockState;
import dev.leasehold.error.AcquireException;
import dev.leasehold.error.ClosedException;
import dev.leasehold.error.UnavailableException;
import dev.leasehold.error.UnreachableException;
import dev.leasehold.v1.GetLockRequest;
import dev.leasehold.v1.SetLockLimitRequest;
import io.grpc.Status;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;

/**
 * The runtime of a client: its thread and its sessions. The public methods are for any thread, the others for the
 * client thread.
 */
public final class ClientRuntime implements Backend, Worker.TickHandler {
    /** Largest number of leases and pending acquires on one stream, as brokers limit it. */
    private static final int STREAM_LEASES_MAX = 1_000;
    /** Longest time that a shutdown waits for brokers. */
    private static final long SHUTDOWN_TIMEOUT = Durations.millisToNanos(2_000);

    private final Endpoints endpoints;
    private final Worker worker = new Worker("leasehold", this);
    private final List<Session> sessions = new ArrayList<>();
    private final CompletableFuture<Void> closed = new CompletableFuture<>();
    private boolean isClosed;
    /** Number of sessions that are still closing. */
    private int closingSessions;

    private ClientRuntime(Endpoints endpoints) {
        this.endpoints = endpoints;
    }

    /** Starts the client. It connects to a broker with its first call. */
    public static ClientRuntime start(Endpoints endpoints) {
        ClientRuntime runtime = new ClientRuntime(endpoints);
        runtime.worker.start();
        return runtime;
    }

    @Override
    public CompletableFuture<Void> connect() {
        CompletableFuture<Void> future = new CompletableFuture<>();
        worker.post(() -> {
            if (isClosed) {
                future.completeExceptionally(new UnreachableException("the client is shut down"));
            } else {
                sessionWithCapacity(0).failover.completeWhenConnected(future);
            }
        });
        return future;
    }

    @Override
    public void acquire(AcquireCommand command) {
        worker.post(() -> {
            if (isClosed) {
                command.listener().onFailed(new ClosedException());
            } else {
                sessionWithCapacity(1).pendingAcquires.start(command);
            }
        });
    }

    @Override
    public void cancel(String requestId) {
        worker.post(() -> sessions.forEach(session -> session.pendingAcquires.cancel(requestId)));
    }

    @Override
    public CompletableFuture<Optional<LockState>> getLockState(LockName lock) {
        GetLockRequest request = GetLockRequest.newBuilder()
                .setNamespace(lock.namespace())
                .setName(lock.name())
                .build();
        CompletableFuture<Optional<LockState>> future = new CompletableFuture<>();
        sendWhenConnected(
                future,
                connection -> connection.getLock(request, (response, error) -> {
                    if (error == null) {
                        future.complete(Optional.of(Converter.lockState(response.getLock())));
                    } else if (Status.fromThrowable(error).getCode() == Status.Code.NOT_FOUND) {
                        future.complete(Optional.empty());
                    } else {
                        future.completeExceptionally(requestError(error));
                    }
                }));
        return future;
    }

    @Override
    public CompletableFuture<OptionalInt> setLimit(LockName lock, int limit) {
        SetLockLimitRequest request = SetLockLimitRequest.newBuilder()
                .setLock(lock.toProto())
                .setLimit(limit)
                .build();
        CompletableFuture<OptionalInt> future = new CompletableFuture<>();
        sendWhenConnected(
                future,
                connection -> connection.setLockLimit(request, (response, error) -> {
                    if (error == null) {
                        future.complete(Converter.previousLimit(response));
                    } else {
                        future.completeExceptionally(requestError(error));
                    }
                }));
        return future;
    }

    /** Sends a unary request once a stream is open, or fails its future with the reason why none is. */
    private void sendWhenConnected(CompletableFuture<?> future, Consumer<StreamConnection> request) {
        worker.post(() -> {
            if (isClosed) {
                future.completeExceptionally(new ClosedException());
                return;
            }
            Session session = sessionWithCapacity(0);
            CompletableFuture<Void> connected = new CompletableFuture<>();
            connected.whenComplete((nothing, error) -> {
                if (session.connection() != null) {
                    request.accept(session.connection());
                } else {
                    future.completeExceptionally(
                            isClosed
                                    ? new ClosedException()
                                    : new UnavailableException(session.failover.errorMessage(), null));
                }
            });
            session.failover.completeWhenConnected(connected);
        });
    }

    private static AcquireException requestError(Throwable error) {
        return switch (Status.fromThrowable(error).getCode()) {
            case CANCELLED, UNAVAILABLE, DEADLINE_EXCEEDED -> unavailableError(error);
            default -> Converter.fromRefused(Converter.refusedFromStatus(error));
        };
    }

    private static AcquireException unavailableError(Throwable error) {
        AcquireException converted = Converter.fromRefused(Converter.refusedFromStatus(error));
        // A status that gRPC has produced has no error reason of Leasehold.
        boolean hasErrorReason = !(converted instanceof dev.leasehold.error.OtherException);
        return hasErrorReason ? converted : new UnavailableException("the stream broke", null);
    }

    @Override
    public CompletableFuture<Void> close() {
        worker.post(() -> close(worker.now() + SHUTDOWN_TIMEOUT));
        return closed;
    }

    private void close(long deadline) {
        if (isClosed) {
            return;
        }
        // A later call must not create another session, which would never be closed.
        isClosed = true;
        closingSessions = sessions.size() + 1;
        List.copyOf(sessions).forEach(session -> session.close(deadline, this::onSessionClosed));
        onSessionClosed();
    }

    private void onSessionClosed() {
        closingSessions--;
        if (closingSessions == 0) {
            worker.stop();
            closed.complete(null);
        }
    }

    /** Returns a session with room for {@code count} more leases or pending acquires. Creates one if there is none. */
    private Session sessionWithCapacity(int count) {
        for (Session session : sessions) {
            if (session.load() + count <= STREAM_LEASES_MAX) {
                return session;
            }
        }
        Session session = new Session(worker, endpoints);
        sessions.add(session);
        return session;
    }

    @Override
    public void onTick(long now) {
        List.copyOf(sessions).forEach(session -> session.onTick(now));
    }

    @Override
    public boolean isIdle() {
        return sessions.stream().allMatch(Session::isIdle);
    }
}
