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

/** The parameters of an acquire, which are the same for each transmission. */
public final class AcquireParams {
    private final AcquireRequest request;
    private final List<LockTarget> targets;
    private final String traceparent;

    /**
     * Creates the parameters.
     *
     * @param request all fields but targets and wait timeout
     * @param targets one or several
     * @param traceparent the caller's trace context, or empty
     */
    public AcquireParams(AcquireRequest request, List<LockTarget> targets, String traceparent) {
        this.request = request;
        this.targets = targets;
        this.traceparent = traceparent;
    }

    public String requestId() {
        return request.getRequestId();
    }

    /** Returns the request without targets and wait timeout. */
    public AcquireRequest request() {
        return request;
    }

    public List<LockTarget> targets() {
        return targets;
    }

    /** Returns the locks of the targets. */
    Set<LockName> locks() {
        return targets.stream().map(LockName::of).collect(Collectors.toUnmodifiableSet());
    }

    /**
     * Builds the message for one transmission, with the remaining wait, under this lease unless {@code under} is null.
     */
    HoldRequest toMessage(long callId, int attachNumber, Duration remainingWait, Lease under) {
        HoldRequest.Builder message = HoldRequest.newBuilder();
        if (targets.size() == 1) {
            AcquireRequest.Builder single =
                    request.toBuilder().setTarget(targets.get(0)).setWaitTimeout(remainingWait);
            if (under != null) {
                single.setUnder(under);
            }
            HoldAcquire.Builder acquire =
                    message.getAcquireBuilder().setCallId(callId).setAttachNumber(attachNumber);
            acquire.setRequest(single).setTraceparent(traceparent);
        } else {
            HoldAcquireAll.Builder acquire = message.getAcquireAllBuilder().setCallId(callId);
            acquire.setAttachNumber(attachNumber)
                    .setRequest(toAcquireAll(remainingWait))
                    .setTraceparent(traceparent);
        }
        return message.build();
    }

    private AcquireAllRequest toAcquireAll(Duration remainingWait) {
        AcquireAllRequest.Builder builder = AcquireAllRequest.newBuilder()
                .addAllTargets(targets)
                .setOwner(request.getOwner())
                .setRequestId(request.getRequestId())
                .setWaitTimeout(remainingWait);
        if (request.hasTtl()) {
            builder.setTtl(request.getTtl());
        }
        if (request.hasMaxHold()) {
            builder.setMaxHold(request.getMaxHold());
        }
        if (request.hasLockDelay()) {
            builder.setLockDelay(request.getLockDelay());
        }
        if (request.hasDisconnectGrace()) {
            builder.setDisconnectGrace(request.getDisconnectGrace());
        }
        if (request.hasAtLeast()) {
            builder.setAtLeast(request.getAtLeast());
        }
        return builder.build();
    }
}
