package dev.leasehold.internal;

import com.google.protobuf.Empty;
import dev.leasehold.error.InvalidCredentialException;
import dev.leasehold.v1.Close;
import dev.leasehold.v1.GetLockRequest;
import dev.leasehold.v1.GetLockResponse;
import dev.leasehold.v1.Heartbeat;
import dev.leasehold.v1.HoldRequest;
import dev.leasehold.v1.HoldResponse;
import dev.leasehold.v1.InspectionServiceGrpc;
import dev.leasehold.v1.LockServiceGrpc;
import dev.leasehold.v1.RefreshCredential;
import dev.leasehold.v1.ReleaseRequest;
import dev.leasehold.v1.ReleaseResponse;
import dev.leasehold.v1.SetLockLimitRequest;
import dev.leasehold.v1.SetLockLimitResponse;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.protobuf.ProtoUtils;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.StreamObserver;
import java.util.HashMap;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;

/**
 * A client's side of one lease stream, with its connection: sent heartbeats and requests, and detection of a dead
 * connection.
 */
final class StreamConnection {
    /** Number of heartbeats whose sending times are stored. Acknowledgements of older heartbeats are ignored. */
    private static final int SENT_HEARTBEATS_MAX = 256;
    /** Timeout of unary calls in seconds. A release that times out is retried. */
    private static final long CALL_TIMEOUT_SECONDS = 5;
    /**
     * Time without any message after which the client sends a health check, and time to wait for its response. A dead
     * connection must be detected before the broker removes waiters from the queue, 6 s after the last heartbeat.
     */
    private static final long HEALTH_CHECK_INTERVAL = Durations.millisToNanos(2_000);
    /** Interval at which the credential is read again. */
    private static final long CREDENTIAL_POLL_INTERVAL = Durations.millisToNanos(1_000);

    /**
     * Health check that detects a dead connection, because gRPC sends HTTP/2 pings at most every 10 s. Any response
     * proves that the broker is alive. An empty request asks for the health of the whole broker.
     */
    private static final MethodDescriptor<Empty, Empty> HEALTH_CHECK = MethodDescriptor.<Empty, Empty>newBuilder()
            .setType(MethodDescriptor.MethodType.UNARY)
            .setFullMethodName("grpc.health.v1.Health/Check")
            .setRequestMarshaller(ProtoUtils.marshaller(Empty.getDefaultInstance()))
            .setResponseMarshaller(ProtoUtils.marshaller(Empty.getDefaultInstance()))
            .build();

    /** Listener for events of a stream, called in a thread that must not block. */
    interface Listener {
        void onOpen(StreamConnection connection);

        /**
         * Called when the stream could not be opened. {@code isUnauthenticated} is true if the broker has rejected the
         * credential.
         */
        void onOpenFailed(StreamConnection connection, String error, boolean isUnauthenticated);

        void onMessage(StreamConnection connection, HoldResponse response);

        /** Called when the broker has responded to a health check. */
        void onHealthResponse(StreamConnection connection);

        void onDisconnect(StreamConnection connection);
    }

    /** A call without a response, and the time at which it was sent. */
    record PendingCall(CallSubject subject, long sentAt) {}

    private final Worker worker;
    private final Endpoints endpoints;
    private final Endpoint endpoint;
    private final long startedAt;
    private final ManagedChannel managedChannel;
    private Channel channel;
    private final ClientCall<HoldRequest, HoldResponse> stream;
    private final Listener listener;

    private final Map<Long, PendingCall> pendingCalls = new HashMap<>();
    private long lastCallId;
    private final long[] heartbeats = new long[SENT_HEARTBEATS_MAX];
    private long lastSequence;
    private Long unansweredSince;
    private long lastMessageAt;
    private Long healthCheckSentAt;
    /** True once the stream accepts no more messages. */
    private boolean isClosed;

    private boolean isShutDown;
    /**
     * Credential of the stream, or null. {@code pendingCredential} is the replacement that was sent and is not yet
     * confirmed, or null.
     */
    private String credential;

    private String pendingCredential;
    private long credentialReadAt;

    /**
     * Opens a stream on a separate connection to the endpoint with this index. Throws InvalidCredentialException if the
     * credential cannot be read.
     */
    StreamConnection(Endpoints endpoints, int endpointIndex, Worker worker, Listener listener) {
        this.worker = worker;
        this.listener = listener;
        this.endpoints = endpoints;
        credential = endpoints.credential();
        endpoint = endpoints.get(endpointIndex);
        startedAt = worker.now();
        lastMessageAt = startedAt;
        credentialReadAt = startedAt;
        managedChannel = endpoints.createChannel(endpoint);
        channel = Endpoints.withCredential(managedChannel, credential);
        stream = channel.newCall(LockServiceGrpc.getHoldMethod(), CallOptions.DEFAULT);
        stream.start(new ResponseListener(), new Metadata());
        stream.request(1);
    }

    /**
     * Receiver of the broker's messages in a thread of gRPC. The state of the connection may be changing in the client
     * thread, so that the receiver only forwards events.
     */
    private final class ResponseListener extends ClientCall.Listener<HoldResponse> {
        private boolean isOpen;

        @Override
        public void onHeaders(Metadata headers) {
            isOpen = true;
            listener.onOpen(StreamConnection.this);
        }

        @Override
        public void onMessage(HoldResponse response) {
            listener.onMessage(StreamConnection.this, response);
            stream.request(1);
        }

        @Override
        public void onClose(Status status, Metadata trailers) {
            if (isOpen) {
                listener.onDisconnect(StreamConnection.this);
            } else {
                listener.onOpenFailed(
                        StreamConnection.this, describe(status), status.getCode() == Status.Code.UNAUTHENTICATED);
            }
        }
    }

    private String describe(Status status) {
        StringBuilder description =
                new StringBuilder(endpoint.name()).append(": ").append(status.getCode());
        if (status.getDescription() != null) {
            description.append(": ").append(status.getDescription());
        }
        if (status.getCause() != null && status.getCause().getMessage() != null) {
            description.append(": ").append(status.getCause().getMessage());
        }
        if (endpoint.isTls() && status.getCode() == Status.Code.UNAVAILABLE) {
            // In TLS 1.3 a server rejects a client certificate after the client has finished its handshake, and the
            // reason may get lost.
            description.append("; the broker may require a client certificate");
        }
        return description.toString();
    }

    String endpointName() {
        return endpoint.name();
    }

    long startedAt() {
        return startedAt;
    }

    /** Records a message on the stream. */
    void recordMessage() {
        unansweredSince = null;
        recordAlive();
    }

    /** Records that the broker is alive. */
    void recordAlive() {
        lastMessageAt = worker.now();
        healthCheckSentAt = null;
    }

    /**
     * Sends a health check if no message has arrived for a while. Returns false if the broker has not responded in
     * time.
     */
    boolean checkHealth(long now) {
        if (healthCheckSentAt != null) {
            return now < healthCheckSentAt + HEALTH_CHECK_INTERVAL;
        }
        if (now >= lastMessageAt + HEALTH_CHECK_INTERVAL) {
            healthCheckSentAt = now;
            callUnary(HEALTH_CHECK, Empty.getDefaultInstance(), (response, error) -> onHealthResponse(error));
        }
        return true;
    }

    private void onHealthResponse(Throwable error) {
        // Every status proves that the broker is alive, except those that gRPC itself may produce.
        Status.Code code =
                error == null ? Status.Code.OK : Status.fromThrowable(error).getCode();
        if (code != Status.Code.UNAVAILABLE && code != Status.Code.DEADLINE_EXCEEDED && code != Status.Code.CANCELLED) {
            listener.onHealthResponse(this);
        }
    }

    /** Sends a changed credential to the broker, because a stream must not outlive its credential. */
    void refreshCredentialIfChanged(long now) {
        if (pendingCredential != null || now < credentialReadAt + CREDENTIAL_POLL_INTERVAL) {
            return;
        }
        credentialReadAt = now;
        String current = currentCredential();
        if (current != null && !current.equals(credential)) {
            pendingCredential = current;
            long callId = nextCallId();
            RefreshCredential.Builder refresh =
                    RefreshCredential.newBuilder().setCallId(callId).setAuthorization(current);
            sendCall(
                    CallSubject.credential(),
                    HoldRequest.newBuilder().setRefreshCredential(refresh).build(),
                    callId);
        }
    }

    /**
     * Returns true if the credential of this stream is still the current one. A rejection of a replaced credential says
     * nothing about its replacement.
     */
    boolean isCredentialCurrent() {
        return Objects.equals(currentCredential(), credential);
    }

    private String currentCredential() {
        try {
            return endpoints.credential();
        } catch (InvalidCredentialException e) {
            // A file that cannot be read may be in the middle of a replacement.
            return null;
        }
    }

    /** Handles the response to a changed credential. A rejected credential will be sent again. */
    void onCredentialResponse(boolean isAccepted) {
        if (isAccepted) {
            credential = pendingCredential;
            channel = Endpoints.withCredential(managedChannel, credential);
        }
        pendingCredential = null;
    }

    /** Returns a new call id of the stream. */
    long nextCallId() {
        return ++lastCallId;
    }

    /** Sends a request with a call id from {@link #nextCallId}, and stores it until its response arrives. */
    void sendCall(CallSubject subject, HoldRequest message, long callId) {
        pendingCalls.put(callId, new PendingCall(subject, worker.sendTime()));
        send(message);
    }

    /**
     * Sends a message that has no response. After the end of the stream the message is dropped; the listener reports
     * the end.
     */
    void send(HoldRequest message) {
        if (!isClosed) {
            stream.sendMessage(message);
        }
    }

    /** Returns the subject of a call without a response, or null. */
    CallSubject pendingSubject(long callId) {
        PendingCall call = pendingCalls.get(callId);
        return call == null ? null : call.subject;
    }

    /** Removes a call because its response has arrived. Returns null if no pending call has this id. */
    PendingCall complete(long callId) {
        return pendingCalls.remove(callId);
    }

    void sendHeartbeat() {
        if (unansweredSince == null) {
            unansweredSince = worker.now();
        }
        lastSequence++;
        heartbeats[(int) (lastSequence % SENT_HEARTBEATS_MAX)] = worker.sendTime();
        send(HoldRequest.newBuilder()
                .setHeartbeat(Heartbeat.newBuilder().setSequence(lastSequence))
                .build());
    }

    /**
     * Returns the time at which a heartbeat was handed to gRPC, which is never later than its transmission. Null if it
     * is no longer stored.
     */
    Long heartbeatSentAt(long sequence) {
        boolean isStored = sequence > 0 && sequence <= lastSequence && sequence > lastSequence - SENT_HEARTBEATS_MAX;
        return isStored ? heartbeats[(int) (sequence % SENT_HEARTBEATS_MAX)] : null;
    }

    /** Returns the time of the newest heartbeat, or null. */
    Long lastHeartbeatSentAt() {
        return heartbeatSentAt(lastSequence);
    }

    /** Returns the time of the first heartbeat that no message of the stream has followed, or null. */
    Long unansweredSince() {
        return unansweredSince;
    }

    /** Sends a unary release beside the stream. {@code callback} gets the response or the error in a thread of gRPC. */
    void releaseUnary(ReleaseRequest request, BiConsumer<ReleaseResponse, Throwable> callback) {
        callUnary(LockServiceGrpc.getReleaseMethod(), request, callback);
    }

    /** Requests the state of a lock. {@code callback} gets the response or the error in a thread of gRPC. */
    void getLock(GetLockRequest request, BiConsumer<GetLockResponse, Throwable> callback) {
        callUnary(InspectionServiceGrpc.getGetLockMethod(), request, callback);
    }

    /** Sets or removes a limit. {@code callback} gets the response or the error in a thread of gRPC. */
    void setLockLimit(SetLockLimitRequest request, BiConsumer<SetLockLimitResponse, Throwable> callback) {
        callUnary(LockServiceGrpc.getSetLockLimitMethod(), request, callback);
    }

    private <T, R> void callUnary(MethodDescriptor<T, R> method, T request, BiConsumer<R, Throwable> callback) {
        CallOptions options = CallOptions.DEFAULT.withDeadlineAfter(CALL_TIMEOUT_SECONDS, TimeUnit.SECONDS);
        ClientCalls.asyncUnaryCall(channel.newCall(method, options), request, new StreamObserver<R>() {
            private boolean hasResponse;

            @Override
            public void onNext(R response) {
                hasResponse = true;
                callback.accept(response, null);
            }

            @Override
            public void onError(Throwable error) {
                // The connection may break after the response.
                if (!hasResponse) {
                    callback.accept(null, error);
                }
            }

            @Override
            public void onCompleted() {
                // The response was handled in onNext.
            }
        });
    }

    /** Closes the stream: the broker releases all leases of the stream, and ends it. */
    void close() {
        send(HoldRequest.newBuilder().setClose(Close.getDefaultInstance()).build());
        isClosed = true;
        stream.halfClose();
    }

    /** Cancels the stream, and closes its connection. */
    void cancel() {
        isClosed = true;
        stream.cancel("the client closed the stream", null);
        shutDown();
    }

    /** Closes the connection after the end of the stream. */
    void shutDown() {
        isClosed = true;
        if (!isShutDown) {
            isShutDown = true;
            managedChannel.shutdownNow();
        }
    }
}
