package dev.leasehold.internal;

import com.google.protobuf.Duration;
import dev.leasehold.v1.AcquireAllRequest;
import dev.leasehold.v1.AcquireRequest;
import dev.leasehold.v1.HoldAcquire;
import dev.leasehold.v1.HoldAcquireAll;
import dev.leasehold.v1.HoldRequest;
import dev.leasehold.v1.Lease;
import dev.leasehold.v1.LockTarget;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;

/** What is asked for; the same however often it is sent. */
public final class Call {
    private final AcquireRequest request;
    private final List<LockTarget> targets;
    private final String traceparent;

    /**
     * A call.
     *
     * @param request all of it but its targets and its wait
     * @param targets one or several
     * @param traceparent the caller's trace context, or empty
     */
    public Call(AcquireRequest request, List<LockTarget> targets, String traceparent) {
        this.request = request;
        this.targets = targets;
        this.traceparent = traceparent;
    }

    public String requestId() {
        return request.getRequestId();
    }

    /** Without what the caller only waits for. */
    public AcquireRequest request() {
        return request;
    }

    public List<LockTarget> targets() {
        return targets;
    }

    /** The locks of its targets. */
    Set<LockName> locks() {
        return targets.stream().map(LockName::of).collect(Collectors.toUnmodifiableSet());
    }

    /** The call with so much time left to wait, under this lease unless that is null. */
    HoldRequest message(long callId, int attachNumber, Duration wait, Lease under) {
        HoldRequest.Builder message = HoldRequest.newBuilder();
        if (targets.size() == 1) {
            AcquireRequest.Builder one =
                    request.toBuilder().setTarget(targets.get(0)).setWaitTimeout(wait);
            if (under != null) {
                one.setUnder(under);
            }
            HoldAcquire.Builder acquire =
                    message.getAcquireBuilder().setCallId(callId).setAttachNumber(attachNumber);
            acquire.setRequest(one).setTraceparent(traceparent);
        } else {
            HoldAcquireAll.Builder acquire = message.getAcquireAllBuilder().setCallId(callId);
            acquire.setAttachNumber(attachNumber).setRequest(several(wait)).setTraceparent(traceparent);
        }
        return message.build();
    }

    private AcquireAllRequest several(Duration wait) {
        AcquireAllRequest.Builder all = AcquireAllRequest.newBuilder()
                .addAllTargets(targets)
                .setOwner(request.getOwner())
                .setRequestId(request.getRequestId())
                .setWaitTimeout(wait);
        if (request.hasTtl()) {
            all.setTtl(request.getTtl());
        }
        if (request.hasMaxHold()) {
            all.setMaxHold(request.getMaxHold());
        }
        if (request.hasLockDelay()) {
            all.setLockDelay(request.getLockDelay());
        }
        if (request.hasDisconnectGrace()) {
            all.setDisconnectGrace(request.getDisconnectGrace());
        }
        return all.build();
    }
}
