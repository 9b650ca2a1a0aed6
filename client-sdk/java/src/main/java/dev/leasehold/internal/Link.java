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

/** One lease stream as its client sees it: what was sent when, and whether the other side answers. */
final class Link {
    /** Heartbeats whose time of sending is remembered. An acknowledgement of an older one is of no use. */
    private static final int BEATS_KEPT = 256;
    /** A unary call without an answer is repeated then. */
    private static final long CALL_LIMIT_SECONDS = 5;
    /**
     * A dead connection must be known before a place in line is given up, 6 s after the last heartbeat: 2 s without any
     * message, and 2 s without an answer to a question.
     */
    private static final long QUIET = Times.millis(2_000);
    /** How often a stream looks for another credential. */
    private static final long CREDENTIAL_EVERY = Times.millis(1_000);

    /**
     * gRPC sends no pings of HTTP/2 more often than every 10 s, so the broker is asked for its health. Whatever it
     * says, it answers; a message without fields is the question for all of it.
     */
    private static final MethodDescriptor<Empty, Empty> HEALTH = MethodDescriptor.<Empty, Empty>newBuilder()
            .setType(MethodDescriptor.MethodType.UNARY)
            .setFullMethodName("grpc.health.v1.Health/Check")
            .setRequestMarshaller(ProtoUtils.marshaller(Empty.getDefaultInstance()))
            .setResponseMarshaller(ProtoUtils.marshaller(Empty.getDefaultInstance()))
            .build();

    /** Who is told of a link, in a thread that must not block. */
    interface Listener {
        void opened(Link link);

        /** It did not open; the broker may have answered, and not known the credential. */
        void failed(Link link, String why, boolean isDenied);

        void heard(Link link, HoldResponse response);

        /** The other side has answered, without a message. */
        void alive(Link link);

        void broken(Link link);
    }

    /** A call without an answer, and when it was sent. */
    record Sent(About about, long at) {}

    private final Worker worker;
    private final Brokers brokers;
    private final Endpoint endpoint;
    private final long begunAt;
    private final ManagedChannel connection;
    private Channel channel;
    private final ClientCall<HoldRequest, HoldResponse> stream;
    private final Listener listener;

    private final Map<Long, Sent> calls = new HashMap<>();
    private long lastCall;
    private final long[] beats = new long[BEATS_KEPT];
    private long lastBeat;
    private Long unanswered;
    private long heardAt;
    private Long askedAt;
    /** Nothing is sent any more. */
    private boolean isOver;

    private boolean isShut;
    /** What the broker knows the stream by, and what it is to be from now on; null if that is the same. */
    private String credential;

    private String showing;
    private long lookedAt;

    /**
     * Opens a stream on a connection of its own, at the endpoint with this number. Throws InvalidCredentialException if
     * there is no credential to show.
     */
    Link(Brokers brokers, int at, Worker worker, Listener listener) {
        this.worker = worker;
        this.listener = listener;
        this.brokers = brokers;
        credential = brokers.credential();
        endpoint = brokers.at(at);
        begunAt = worker.now();
        heardAt = begunAt;
        lookedAt = begunAt;
        connection = brokers.channel(endpoint);
        channel = Brokers.shown(connection, credential);
        stream = channel.newCall(LockServiceGrpc.getHoldMethod(), CallOptions.DEFAULT);
        stream.start(new Stream(), new Metadata());
        stream.request(1);
    }

    /** What the broker says, in gRPC's thread, which may be in the midst of a change: nothing is asked of it here. */
    private final class Stream extends ClientCall.Listener<HoldResponse> {
        private boolean isOpen;

        @Override
        public void onHeaders(Metadata headers) {
            isOpen = true;
            listener.opened(Link.this);
        }

        @Override
        public void onMessage(HoldResponse response) {
            listener.heard(Link.this, response);
            stream.request(1);
        }

        @Override
        public void onClose(Status status, Metadata trailers) {
            if (isOpen) {
                listener.broken(Link.this);
            } else {
                listener.failed(Link.this, whyNot(status), status.getCode() == Status.Code.UNAUTHENTICATED);
            }
        }
    }

    private String whyNot(Status status) {
        StringBuilder why = new StringBuilder(endpoint.name()).append(": ").append(status.getCode());
        if (status.getDescription() != null) {
            why.append(": ").append(status.getDescription());
        }
        if (status.getCause() != null && status.getCause().getMessage() != null) {
            why.append(": ").append(status.getCause().getMessage());
        }
        if (endpoint.isTls() && status.getCode() == Status.Code.UNAVAILABLE) {
            // TLS 1.3 refuses a client after its side of the handshake, and the reason may get lost.
            why.append("; does the broker want a client certificate?");
        }
        return why.toString();
    }

    String name() {
        return endpoint.name();
    }

    long begunAt() {
        return begunAt;
    }

    /** The other side has said something on the stream. */
    void heard() {
        unanswered = null;
        alive();
    }

    /** The other side lives. */
    void alive() {
        heardAt = worker.now();
        askedAt = null;
    }

    /** Asks the other side whether it lives, after a while without a word. False: it has not answered. */
    boolean watch(long now) {
        if (askedAt != null) {
            return now < askedAt + QUIET;
        }
        if (now >= heardAt + QUIET) {
            askedAt = now;
            unary(HEALTH, Empty.getDefaultInstance(), (response, error) -> answered(error));
        }
        return true;
    }

    private void answered(Throwable error) {
        // Any answer but one that gRPC has made here itself.
        Status.Code code =
                error == null ? Status.Code.OK : Status.fromThrowable(error).getCode();
        if (code != Status.Code.UNAVAILABLE && code != Status.Code.DEADLINE_EXCEEDED && code != Status.Code.CANCELLED) {
            listener.alive(this);
        }
    }

    /** Shows the broker another credential as soon as there is one: a stream must not outlive its own. */
    void watchCredential(long now) {
        if (showing != null || now < lookedAt + CREDENTIAL_EVERY) {
            return;
        }
        lookedAt = now;
        String newest = newest();
        if (newest != null && !newest.equals(credential)) {
            showing = newest;
            long callId = nextCall();
            RefreshCredential.Builder refresh =
                    RefreshCredential.newBuilder().setCallId(callId).setAuthorization(newest);
            call(
                    About.credential(),
                    HoldRequest.newBuilder().setRefreshCredential(refresh).build(),
                    callId);
        }
    }

    /** Whether it was not replaced: what a broker says to one that was says nothing of the next one. */
    boolean showsNewest() {
        return Objects.equals(newest(), credential);
    }

    private String newest() {
        try {
            return brokers.credential();
        } catch (InvalidCredentialException e) {
            // A file that cannot be read may be about to be replaced.
            return null;
        }
    }

    /** What was shown is accepted, or will be shown again. */
    void shown(boolean isAccepted) {
        if (isAccepted) {
            credential = showing;
            channel = Brokers.shown(connection, credential);
        }
        showing = null;
    }

    /** An id that no call of the stream has had. */
    long nextCall() {
        return ++lastCall;
    }

    /** Sends a call that has this id, from nextCall. */
    void call(About about, HoldRequest message, long callId) {
        calls.put(callId, new Sent(about, worker.sent()));
        send(message);
    }

    /** Sends a message that is no call. A stream that has ended says so where it is heard. */
    void send(HoldRequest message) {
        if (!isOver) {
            stream.sendMessage(message);
        }
    }

    /** What a call is about that has no answer yet, or null. */
    About asked(long callId) {
        Sent sent = calls.get(callId);
        return sent == null ? null : sent.about;
    }

    /** What an answer is about, and when that was sent; null if nothing waits for it. */
    Sent answered(long callId) {
        return calls.remove(callId);
    }

    /** Sends a heartbeat. */
    void beat() {
        if (unanswered == null) {
            unanswered = worker.now();
        }
        lastBeat++;
        beats[(int) (lastBeat % BEATS_KEPT)] = worker.sent();
        send(HoldRequest.newBuilder()
                .setHeartbeat(Heartbeat.newBuilder().setSequence(lastBeat))
                .build());
    }

    /** When a heartbeat was sent, or put in the way of sending: never later than that. Null if nobody knows. */
    Long beatSent(long sequence) {
        boolean isKept = sequence > 0 && sequence <= lastBeat && sequence > lastBeat - BEATS_KEPT;
        return isKept ? beats[(int) (sequence % BEATS_KEPT)] : null;
    }

    /** When the newest heartbeat was sent, or null. */
    Long lastBeat() {
        return beatSent(lastBeat);
    }

    /** Since when nothing has answered a heartbeat, or null. */
    Long silentSince() {
        return unanswered;
    }

    /** A release by itself, beside the stream. The answer, or the error, is told in gRPC's thread. */
    void release(ReleaseRequest request, BiConsumer<ReleaseResponse, Throwable> done) {
        unary(LockServiceGrpc.getReleaseMethod(), request, done);
    }

    /** A look at a lock. The answer, or the error, is told in gRPC's thread. */
    void look(GetLockRequest request, BiConsumer<GetLockResponse, Throwable> done) {
        unary(InspectionServiceGrpc.getGetLockMethod(), request, done);
    }

    private <T, R> void unary(MethodDescriptor<T, R> method, T request, BiConsumer<R, Throwable> done) {
        CallOptions options = CallOptions.DEFAULT.withDeadlineAfter(CALL_LIMIT_SECONDS, TimeUnit.SECONDS);
        ClientCalls.asyncUnaryCall(channel.newCall(method, options), request, new StreamObserver<R>() {
            private boolean isTold;

            @Override
            public void onNext(R response) {
                isTold = true;
                done.accept(response, null);
            }

            @Override
            public void onError(Throwable error) {
                // A connection may break after the response.
                if (!isTold) {
                    done.accept(null, error);
                }
            }

            @Override
            public void onCompleted() {
                // The response was the answer.
            }
        });
    }

    /** Ends it in good order: the broker releases every lease that is on it, and ends the stream. */
    void close() {
        send(HoldRequest.newBuilder().setClose(Close.getDefaultInstance()).build());
        isOver = true;
        stream.halfClose();
    }

    /** Breaks it. */
    void cut() {
        isOver = true;
        stream.cancel("the client has left", null);
        shut();
    }

    /** Its stream has ended, and so does its connection. */
    void shut() {
        isOver = true;
        if (!isShut) {
            isShut = true;
            connection.shutdownNow();
        }
    }
}
