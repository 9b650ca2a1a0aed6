package dev.leasehold.internal;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import dev.leasehold.Holder;
import dev.leasehold.LockState;
import dev.leasehold.Loss;
import dev.leasehold.LostReason;
import dev.leasehold.QueuePlace;
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
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Set;

/** What a broker says, in the words of this library. */
final class Reading {
    private static final Set<Integer> OPEN = Set.of(
            Status.Code.UNAVAILABLE.value(),
            Status.Code.CANCELLED.value(),
            Status.Code.UNKNOWN.value(),
            Status.Code.DEADLINE_EXCEEDED.value());

    private Reading() {}

    static Holder holder(dev.leasehold.v1.Holder one) {
        Instant since = one.hasSinceTime()
                ? Instant.ofEpochSecond(
                        one.getSinceTime().getSeconds(), one.getSinceTime().getNanos())
                : null;
        return new Holder(
                one.getLeaseId(),
                one.getOwner().getId(),
                one.getOwner().getReason(),
                one.getFencingToken(),
                since,
                Times.of(one.getRemaining()));
    }

    private static List<Holder> holders(List<dev.leasehold.v1.Holder> all) {
        return all.stream().map(Reading::holder).toList();
    }

    static QueuePlace place(Queued queued) {
        return new QueuePlace(queued.getPosition(), queued.getQueueLength(), holders(queued.getHoldersList()));
    }

    static LockState state(Lock lock) {
        return new LockState(holders(lock.getHoldersList()), lock.getQueueLength(), lock.getLastFencingToken());
    }

    /** A call that was refused. */
    static AcquireException refused(Refused said) {
        String message = said.getMessage();
        Duration after = said.hasRetryAfter() ? Times.of(said.getRetryAfter()) : null;
        return switch (said.getReason()) {
            case ERROR_REASON_LOCK_HELD -> {
                Contention busy = contention(said);
                yield new HeldException(message, holders(busy.getHoldersList()), busy.getQueueLength(), after);
            }
            case ERROR_REASON_WAIT_TIMEOUT, ERROR_REASON_STILL_QUEUED -> {
                Contention busy = contention(said);
                yield new WaitTimeoutException(message, holders(busy.getHoldersList()), busy.getQueueLength(), after);
            }
            case ERROR_REASON_LEASE_EXPIRED,
                    ERROR_REASON_LEASE_REVOKED,
                    ERROR_REASON_LEASE_NOT_FOUND,
                    ERROR_REASON_STALE_ATTACH -> new LeaseLostException(lost(said));
            case ERROR_REASON_LIMIT_MISMATCH -> new LimitMismatchException(message, after);
            case ERROR_REASON_UPGRADE_DENIED -> new UpgradeDeniedException(message, after);
            case ERROR_REASON_INVALID_FIELD -> new InvalidException(message, after);
            case ERROR_REASON_QUEUE_FULL -> new QueueFullException(message, after);
            case ERROR_REASON_QUOTA_EXCEEDED, ERROR_REASON_TOO_MANY_LEASES ->
                new QuotaExceededException(message, after);
            case ERROR_REASON_STORE_FULL -> new StoreFullException(message, after);
            case ERROR_REASON_UNSUPPORTED_BY_STORE -> new UnsupportedByStoreException(message, after);
            case ERROR_REASON_UNAUTHENTICATED -> new UnauthenticatedException(message, after);
            case ERROR_REASON_PERMISSION_DENIED -> new PermissionDeniedException(message, after);
            case ERROR_REASON_STORE_UNAVAILABLE,
                    ERROR_REASON_DRAINING,
                    ERROR_REASON_OVERLOADED,
                    ERROR_REASON_TOO_MANY_ATTEMPTS -> new UnavailableException(message, after);
            case ERROR_REASON_STORE_RECOVERING -> new StoreRecoveringException(message, after);
            case ERROR_REASON_INTERNAL -> new InternalException(message, after);
            default -> new OtherException(message, after);
        };
    }

    private static Contention contention(Refused said) {
        for (Any detail : said.getDetailsList()) {
            Contention found = unpacked(detail, Contention.class);
            if (found != null) {
                return found;
            }
        }
        return Contention.getDefaultInstance();
    }

    private static <T extends com.google.protobuf.Message> T unpacked(Any detail, Class<T> kind) {
        try {
            return detail.is(kind) ? detail.unpack(kind) : null;
        } catch (InvalidProtocolBufferException e) {
            // What cannot be read says nothing.
            return null;
        }
    }

    /** What a refusal for the end of a lease means to its holder. */
    static Loss lost(Refused said) {
        return switch (said.getReason()) {
            case ERROR_REASON_LEASE_EXPIRED -> new Loss(LostReason.EXPIRED);
            case ERROR_REASON_LEASE_REVOKED -> new Loss(LostReason.REVOKED, said.getMessage());
            case ERROR_REASON_LEASE_NOT_FOUND -> new Loss(LostReason.STORE_LOST);
            case ERROR_REASON_STALE_ATTACH -> new Loss(LostReason.MOVED);
            default -> new Loss(LostReason.OTHER, said.getMessage());
        };
    }

    /** The broker's word that a lease is over. */
    static Loss ended(LeaseEnded said) {
        return switch (said.getReason()) {
            case LEASE_END_REASON_RELEASED -> new Loss(LostReason.RELEASED);
            case LEASE_END_REASON_EXPIRED -> new Loss(LostReason.EXPIRED);
            case LEASE_END_REASON_REVOKED -> new Loss(LostReason.REVOKED, said.getMessage());
            case LEASE_END_REASON_STORE_LOST -> new Loss(LostReason.STORE_LOST);
            case LEASE_END_REASON_MAX_HOLD -> new Loss(LostReason.MAX_HOLD);
            case LEASE_END_REASON_MOVED -> new Loss(LostReason.MOVED);
            case LEASE_END_REASON_CREDENTIAL_EXPIRED -> new Loss(LostReason.CREDENTIAL_EXPIRED);
            default -> new Loss(LostReason.OTHER, said.getMessage());
        };
    }

    /**
     * Whether a call may have been done all the same, and is to be repeated. A wait is cancelled by the broker, too, if
     * it has not heard of the client for long.
     */
    static boolean isOpen(Refused said) {
        return OPEN.contains(said.getCode());
    }

    /** The status of a unary call, as the same call would have been refused on a stream. */
    static Refused status(Throwable error) {
        Status status = Status.fromThrowable(error);
        Refused.Builder said = Refused.newBuilder().setCode(status.getCode().value());
        said.setMessage(status.getDescription() == null ? "" : status.getDescription());
        com.google.rpc.Status details =
                error instanceof StatusRuntimeException ? StatusProto.fromThrowable(error) : null;
        if (details == null) {
            return said.build();
        }
        for (Any detail : details.getDetailsList()) {
            ErrorInfo info = unpacked(detail, ErrorInfo.class);
            RetryInfo retry = unpacked(detail, RetryInfo.class);
            if (info != null) {
                said.setReason(reason(info.getReason()));
            } else if (retry != null) {
                said.setRetryAfter(retry.getRetryDelay());
            } else {
                said.addDetails(detail);
            }
        }
        return said.build();
    }

    private static ErrorReason reason(String name) {
        try {
            return ErrorReason.valueOf("ERROR_REASON_" + name);
        } catch (IllegalArgumentException e) {
            // Of a newer broker.
            return ErrorReason.ERROR_REASON_UNSPECIFIED;
        }
    }
}
