package dev.leasehold.internal;

import dev.leasehold.Loss;
import dev.leasehold.LostReason;
import dev.leasehold.error.ClosedException;
import dev.leasehold.v1.Done;
import dev.leasehold.v1.HoldResponse;
import dev.leasehold.v1.Refused;
import dev.leasehold.v1.Released;
import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * A session: the leases and pending acquires of one lease stream, which move to another broker when the stream breaks.
 * All methods except those of {@link CommandSender} run in the client thread.
 */
final class Session implements CommandSender {
    private static final Logger LOG = System.getLogger("dev.leasehold");

    /** A call that was rejected for now, and the time at which to send it again. */
    private record Retry(long time, CallSubject subject) {}

    final Worker worker;
    final Endpoints endpoints;
    final Failover failover;
    final PendingAcquires pendingAcquires;
    final Leases leases;
    final PendingReleases pendingReleases;
    private StreamConnection connection;
    private List<Retry> retries = new ArrayList<>();
    private Runnable onClosed;
    private long closeDeadline;
    private long streamCloseDeadline;
    private boolean isStreamClosed;
    private boolean isClosed;

    Session(Worker worker, Endpoints endpoints) {
        this.worker = worker;
        this.endpoints = endpoints;
        failover = new Failover(this);
        pendingAcquires = new PendingAcquires(this);
        leases = new Leases(this);
        pendingReleases = new PendingReleases(this);
        failover.startFailover(0);
    }

    @Override
    public void acquire(AcquireCommand command) {
        worker.post(() -> pendingAcquires.start(command));
    }

    @Override
    public void cancel(String requestId) {
        worker.post(() -> pendingAcquires.cancel(requestId));
    }

    @Override
    public void release(LeaseHandle handle, CompletableFuture<Void> future) {
        worker.post(() -> pendingReleases.release(handle, future));
    }

    /** Returns the current stream, or null. */
    StreamConnection connection() {
        return connection;
    }

    /** Returns true if the session accepts no more requests. */
    boolean isClosed() {
        return isClosed;
    }

    /** Returns the number of leases and pending acquires. */
    int load() {
        return pendingAcquires.count() + leases.count();
    }

    /** Returns true if nothing of this session can expire or time out. */
    boolean isIdle() {
        return load() == 0 && failover.isStable() && onClosed == null;
    }

    /** Schedules a call to be sent again after {@code delay} nanoseconds. */
    void scheduleRetry(long delay, CallSubject subject) {
        retries.add(new Retry(worker.now() + delay, subject));
    }

    /** Handles a message of the broker. Messages of former streams are ignored. */
    void onMessage(StreamConnection source, HoldResponse response) {
        if (source != connection) {
            return;
        }
        connection.recordMessage();
        switch (response.getMessageCase()) {
            case ACK -> leases.onHeartbeatAck(response.getAck());
            case GRANTED -> pendingAcquires.onGranted(response.getGranted());
            case RELEASED -> onReleased(response.getReleased());
            case QUEUED -> pendingAcquires.onQueued(response.getQueued());
            case REFUSED -> onRefused(response.getRefused());
            case ATTACHED -> leases.onAttached(response.getAttached());
            case ENDED ->
                leases.onEnded(response.getEnded().getLeaseId(), Converter.lossFromEnded(response.getEnded()));
            case RECONNECT ->
                failover.startFailover(
                        Durations.protoToNanos(response.getReconnect().getDelay()));
            case DONE -> onDone(response.getDone());
            case RELEASE_REQUESTED ->
                LOG.log(
                        Level.INFO,
                        "the broker requests the release of lease {0}: {1}",
                        response.getReleaseRequested().getLeaseId(),
                        response.getReleaseRequested().getMessage());
            default -> {
                // A message of a newer broker is ignored.
            }
        }
    }

    private void onDone(Done done) {
        StreamConnection.PendingCall call = connection.complete(done.getCallId());
        if (call != null && call.subject().kind == CallSubject.Kind.CREDENTIAL) {
            connection.onCredentialResponse(true);
        }
    }

    private void onReleased(Released released) {
        StreamConnection.PendingCall call = connection.complete(released.getCallId());
        if (call == null || call.subject().kind != CallSubject.Kind.RELEASE) {
            return;
        }
        CallSubject subject = call.subject();
        if (subject.releaseNumber == 0) {
            pendingReleases.onReleased(subject.key);
        } else {
            pendingReleases.onPartialRelease(subject, released.getHoldCount());
        }
    }

    private void onRefused(Refused refused) {
        StreamConnection.PendingCall call = connection.complete(refused.getCallId());
        if (call == null) {
            return;
        }
        CallSubject subject = call.subject();
        switch (subject.kind) {
            case ACQUIRE -> pendingAcquires.onRefused(subject.key, refused);
            case ATTACH -> leases.onAttachRefused(subject.key, refused);
            case RELEASE -> {
                if (subject.releaseNumber == 0) {
                    pendingReleases.onRefused(subject.key, refused);
                } else {
                    pendingReleases.onPartialRefused(subject, refused);
                }
            }
            case CREDENTIAL -> {
                // The broker may not have loaded the key of the credential, or the credential itself, yet.
                LOG.log(Level.WARNING, "a broker rejected the new credential: {0}", refused.getMessage());
                connection.onCredentialResponse(false);
            }
            case DETACH -> {
                // No caller waits for the response.
            }
        }
    }

    /** Runs all actions that are due. */
    void onTick(long now) {
        if (onClosed != null) {
            closeStreamIfReady();
            if (now >= closeDeadline) {
                finishClose(false);
            }
            return;
        }
        leases.checkValidity(now);
        pendingAcquires.expirePending(now);
        leases.checkSilence(now);
        leases.heartbeatIfDue(now);
        sendRetries(now);
        failover.onTick(now);
        if (connection != null) {
            connection.refreshCredentialIfChanged(now);
        }
        if (connection != null && !connection.checkHealth(now)) {
            StreamConnection unresponsive = connection;
            unresponsive.cancel();
            onDisconnect(unresponsive);
        }
    }

    private void sendRetries(long now) {
        if (connection == null) {
            return;
        }
        List<Retry> scheduled = retries;
        retries = new ArrayList<>();
        for (Retry retry : scheduled) {
            if (retry.time > now) {
                retries.add(retry);
            } else {
                retry(retry.subject);
            }
        }
    }

    private void retry(CallSubject subject) {
        switch (subject.kind) {
            case ACQUIRE -> pendingAcquires.send(subject.key);
            case ATTACH -> leases.attach(subject.key);
            case RELEASE -> pendingReleases.send(subject.key, subject.releaseNumber);
            case CREDENTIAL, DETACH -> {
                // Calls of these kinds are never sent again.
            }
        }
    }

    /**
     * Cancels all pending acquires, releases all leases until {@code deadline} at the latest, and closes the session.
     * Then calls {@code onClosed}.
     */
    void close(long deadline, Runnable onClosed) {
        isClosed = true;
        pendingAcquires.failAll(new ClosedException());
        leases.endAll(new Loss(LostReason.CLOSED));
        failover.stop();
        this.onClosed = onClosed;
        closeDeadline = deadline;
        long now = worker.now();
        streamCloseDeadline = now + (deadline - now) / 2;
        if (connection == null) {
            finishClose(false);
        } else {
            closeStreamIfReady();
        }
    }

    /**
     * Closes the stream once the session is closing and no unary release is pending, or after half of the shutdown
     * time.
     */
    void closeStreamIfReady() {
        boolean canClose = !pendingReleases.hasPendingUnary() || worker.now() >= streamCloseDeadline;
        if (onClosed != null && connection != null && !isStreamClosed && canClose) {
            isStreamClosed = true;
            connection.close();
        }
    }

    /** Handles the end of a stream: starts a failover unless the session is closing. */
    void onDisconnect(StreamConnection disconnected) {
        if (disconnected != connection) {
            return;
        }
        connection = null;
        if (onClosed != null) {
            finishClose(true);
            return;
        }
        LOG.log(Level.DEBUG, "the lease stream broke");
        onStreamLost();
        failover.onDisconnect();
    }

    /**
     * Moves all leases and pending acquires to a new stream. Requests without a response are sent again on the new
     * stream.
     */
    void resumeAll(StreamConnection next) {
        StreamConnection previous = connection;
        connection = next;
        if (previous != null) {
            previous.cancel();
        }
        onStreamLost();
        leases.resumeAll();
        pendingAcquires.resumeAll();
    }

    private void onStreamLost() {
        // Retries that were scheduled for the former stream are dropped.
        retries.clear();
        pendingAcquires.onStreamLost();
        leases.onStreamLost();
    }

    private void finishClose(boolean isConfirmed) {
        Runnable callback = onClosed;
        onClosed = () -> {};
        closeDeadline = Durations.MAX_NANOS;
        if (connection != null) {
            connection.cancel();
            connection = null;
        }
        pendingReleases.onStreamClosed(isConfirmed);
        callback.run();
    }
}
