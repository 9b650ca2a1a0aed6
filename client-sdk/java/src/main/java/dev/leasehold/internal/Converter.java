package dev.leasehold.internal;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Timestamp;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import dev.leasehold.Closure;
import dev.leasehold.ClosureCause;
import dev.leasehold.Holder;
import dev.leasehold.LockState;
import dev.leasehold.Loss;
import dev.leasehold.LostReason;
import dev.leasehold.PermitUsage;
import dev.leasehold.QueuePosition;
import dev.leasehold.StoreRecovery;
import dev.leasehold.error.AcquireException;
import dev.leasehold.error.HeldException;
import dev.leasehold.error.InternalException;
import dev.leasehold.error.InvalidException;
import dev.leasehold.error.LeaseLostException;
import dev.leasehold.error.LimitMismatchException;
import dev.leasehold.error.OtherException;
import dev.leasehold.error.PermissionDeniedException;
import dev.leasehold.error.QueueFullException;
import dev.leasehold.error.QuotaExceededException;
import dev.leasehold.error.StoreFullException;
import dev.leasehold.error.StoreRecoveringException;
import dev.leasehold.error.UnauthenticatedException;
import dev.leasehold.error.UnavailableException;
import dev.leasehold.error.UnsupportedByStoreException;
import dev.leasehold.error.UpgradeDeniedException;
import dev.leasehold.error.WaitTimeoutException;
import dev.leasehold.v1.Contention;
import dev.leasehold.v1.ErrorReason;
import dev.leasehold.v1.LeaseEnded;
import dev.leasehold.v1.Lock;
import dev.leasehold.v1.Queued;
import dev.leasehold.v1.Refused;
import dev.leasehold.v1.SetLockLimitResponse;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;

/** Conversion of messages of the broker into types of this library. */
final class Converter {
    private static final Set<Integer> RETRYABLE_CODES = Set.of(
            Status.Code.UNAVAILABLE.value(),
            Status.Code.CANCELLED.value(),
            Status.Code.UNKNOWN.value(),
            Status.Code.DEADLINE_EXCEEDED.value());

    private Converter() {}

    static Holder holder(dev.leasehold.v1.Holder holder) {
        Instant since = holder.hasSinceTime() ? instant(holder.getSinceTime()) : null;
        return new Holder(
                holder.getLeaseId(),
                holder.getOwner().getId(),
                holder.getOwner().getReason(),
                holder.getFencingToken(),
                since,
                Durations.fromProto(holder.getRemaining()));
    }

    private static Instant instant(Timestamp timestamp) {
        return Instant.ofEpochSecond(timestamp.getSeconds(), timestamp.getNanos());
    }

    private static List<Holder> holders(List<dev.leasehold.v1.Holder> holders) {
        return holders.stream().map(Converter::holder).toList();
    }

    static QueuePosition queuePosition(Queued queued) {
        return new QueuePosition(
                queued.getPosition(),
                queued.getQueueLength(),
                holders(queued.getHoldersList()),
                queued.hasClosure() ? Optional.of(closure(queued.getClosure())) : Optional.empty(),
                queued.hasRecovery() ? Optional.of(recovery(queued.getRecovery())) : Optional.empty());
    }

    private static StoreRecovery recovery(dev.leasehold.v1.StoreRecovery recovery) {
        return new StoreRecovery(
                recovery.getCause(),
                recovery.hasSinceTime() ? Optional.of(instant(recovery.getSinceTime())) : Optional.empty(),
                Durations.fromProto(recovery.getRemaining()));
    }

    /** Returns the recovery of the store for which a call was rejected. */
    static Optional<StoreRecovery> recoveryFromRefused(Refused refused) {
        return refused.getDetailsList().stream()
                .map(detail -> unpack(detail, dev.leasehold.v1.StoreRecovery.class))
                .filter(Objects::nonNull)
                .map(Converter::recovery)
                .findFirst();
    }

    static LockState lockState(Lock lock) {
        return new LockState(
                holders(lock.getHoldersList()),
                lock.getQueueLength(),
                lock.getLastFencingToken(),
                lock.hasClosure() ? Optional.of(closure(lock.getClosure())) : Optional.empty(),
                lock.hasPermitUsage() ? Optional.of(permitUsage(lock.getPermitUsage())) : Optional.empty());
    }

    private static PermitUsage permitUsage(dev.leasehold.v1.PermitUsage usage) {
        return new PermitUsage(usage.getLimit(), usage.getUsed(), usage.getIsLimitSet());
    }

    static OptionalInt previousLimit(SetLockLimitResponse response) {
        int limit = response.getPreviousLimit();
        return limit == 0 ? OptionalInt.empty() : OptionalInt.of(limit);
    }

    /** Converts a rejection into an exception. */
    static AcquireException fromRefused(Refused refused) {
        String message = refused.getMessage();
        Duration retryAfter = refused.hasRetryAfter() ? Durations.fromProto(refused.getRetryAfter()) : null;
        return switch (refused.getReason()) {
            case ERROR_REASON_LOCK_HELD -> {
                Contention contention = contention(refused);
                yield new HeldException(
                        message,
                        holders(contention.getHoldersList()),
                        contention.getQueueLength(),
                        closure(contention),
                        retryAfter);
            }
            case ERROR_REASON_WAIT_TIMEOUT, ERROR_REASON_STILL_QUEUED -> {
                Contention contention = contention(refused);
                yield new WaitTimeoutException(
                        message,
                        holders(contention.getHoldersList()),
                        contention.getQueueLength(),
                        closure(contention),
                        retryAfter);
            }
            case ERROR_REASON_LEASE_EXPIRED,
                    ERROR_REASON_LEASE_REVOKED,
                    ERROR_REASON_LEASE_NOT_FOUND,
                    ERROR_REASON_STALE_ATTACH -> new LeaseLostException(lossFromRefused(refused));
            case ERROR_REASON_LIMIT_MISMATCH -> new LimitMismatchException(message, retryAfter);
            case ERROR_REASON_UPGRADE_DENIED -> new UpgradeDeniedException(message, retryAfter);
            case ERROR_REASON_INVALID_FIELD -> new InvalidException(message, retryAfter);
            case ERROR_REASON_QUEUE_FULL -> new QueueFullException(message, retryAfter);
            case ERROR_REASON_QUOTA_EXCEEDED, ERROR_REASON_TOO_MANY_LEASES ->
                new QuotaExceededException(message, retryAfter);
            case ERROR_REASON_STORE_FULL -> new StoreFullException(message, retryAfter);
            case ERROR_REASON_UNSUPPORTED_BY_STORE -> new UnsupportedByStoreException(message, retryAfter);
            case ERROR_REASON_UNAUTHENTICATED -> new UnauthenticatedException(message, retryAfter);
            case ERROR_REASON_PERMISSION_DENIED -> new PermissionDeniedException(message, retryAfter);
            case ERROR_REASON_STORE_UNAVAILABLE,
                    ERROR_REASON_DRAINING,
                    ERROR_REASON_OVERLOADED,
                    ERROR_REASON_TOO_MANY_ATTEMPTS -> new UnavailableException(message, retryAfter);
            case ERROR_REASON_STORE_RECOVERING -> new StoreRecoveringException(message, retryAfter);
            case ERROR_REASON_INTERNAL -> new InternalException(message, retryAfter);
            default -> new OtherException(message, retryAfter);
        };
    }

    private static Contention contention(Refused refused) {
        for (Any detail : refused.getDetailsList()) {
            Contention contention = unpack(detail, Contention.class);
            if (contention != null) {
                return contention;
            }
        }
        return Contention.getDefaultInstance();
    }

    /** Returns the closure of a contention, or null. */
    private static Closure closure(Contention contention) {
        return contention.hasClosure() ? closure(contention.getClosure()) : null;
    }

    private static Closure closure(dev.leasehold.v1.Closure closure) {
        ClosureCause cause = switch (closure.getCause()) {
            case CLOSURE_CAUSE_LOCK_DELAY -> ClosureCause.LOCK_DELAY;
            case CLOSURE_CAUSE_AT_LEAST -> ClosureCause.AT_LEAST;
            case CLOSURE_CAUSE_OPERATOR -> ClosureCause.OPERATOR;
            default -> ClosureCause.OTHER;
        };
        return new Closure(
                cause,
                closure.getOwner().getId(),
                closure.getOwner().getReason(),
                closure.hasUntilTime() ? instant(closure.getUntilTime()) : null,
                Durations.fromProto(closure.getRemaining()));
    }

    private static <T extends com.google.protobuf.Message> T unpack(Any detail, Class<T> kind) {
        try {
            return detail.is(kind) ? detail.unpack(kind) : null;
        } catch (InvalidProtocolBufferException e) {
            // A detail that cannot be decoded is ignored.
            return null;
        }
    }

    /** Converts a rejection that means the end of a lease into the cause of the loss. */
    static Loss lossFromRefused(Refused refused) {
        return switch (refused.getReason()) {
            case ERROR_REASON_LEASE_EXPIRED -> new Loss(LostReason.EXPIRED);
            case ERROR_REASON_LEASE_REVOKED -> new Loss(LostReason.REVOKED, refused.getMessage());
            case ERROR_REASON_LEASE_NOT_FOUND -> new Loss(LostReason.STORE_LOST);
            case ERROR_REASON_STALE_ATTACH -> new Loss(LostReason.MOVED);
            default -> new Loss(LostReason.OTHER, refused.getMessage());
        };
    }

    /** Converts the broker's report about the end of a lease into the cause of the loss. */
    static Loss lossFromEnded(LeaseEnded ended) {
        return switch (ended.getReason()) {
            case LEASE_END_REASON_RELEASED -> new Loss(LostReason.RELEASED);
            case LEASE_END_REASON_EXPIRED -> new Loss(LostReason.EXPIRED);
            case LEASE_END_REASON_REVOKED -> new Loss(LostReason.REVOKED, ended.getMessage());
            case LEASE_END_REASON_STORE_LOST -> new Loss(LostReason.STORE_LOST);
            case LEASE_END_REASON_MAX_HOLD -> new Loss(LostReason.MAX_HOLD);
            case LEASE_END_REASON_MOVED -> new Loss(LostReason.MOVED);
            case LEASE_END_REASON_CREDENTIAL_EXPIRED -> new Loss(LostReason.CREDENTIAL_EXPIRED);
            default -> new Loss(LostReason.OTHER, ended.getMessage());
        };
    }

    /**
     * Returns true if a rejected call may have taken effect nevertheless, so that it must be retried. CANCELLED is one
     * of these codes, because the broker also cancels a wait if it has received nothing from the client for too long.
     */
    static boolean isRetryable(Refused refused) {
        return RETRYABLE_CODES.contains(refused.getCode());
    }

    /** Converts the status of a unary call into the rejection that a stream would have sent. */
    static Refused refusedFromStatus(Throwable error) {
        Status status = Status.fromThrowable(error);
        Refused.Builder refused = Refused.newBuilder().setCode(status.getCode().value());
        refused.setMessage(status.getDescription() == null ? "" : status.getDescription());
        com.google.rpc.Status details =
                error instanceof StatusRuntimeException ? StatusProto.fromThrowable(error) : null;
        if (details == null) {
            return refused.build();
        }
        for (Any detail : details.getDetailsList()) {
            ErrorInfo errorInfo = unpack(detail, ErrorInfo.class);
            RetryInfo retryInfo = unpack(detail, RetryInfo.class);
            if (errorInfo != null) {
                refused.setReason(parseReason(errorInfo.getReason()));
            } else if (retryInfo != null) {
                refused.setRetryAfter(retryInfo.getRetryDelay());
            } else {
                refused.addDetails(detail);
            }
        }
        return refused.build();
    }

    private static ErrorReason parseReason(String name) {
        try {
            return ErrorReason.valueOf("ERROR_REASON_" + name);
        } catch (IllegalArgumentException e) {
            // A reason of a newer broker.
            return ErrorReason.ERROR_REASON_UNSPECIFIED;
        }
    }
}
