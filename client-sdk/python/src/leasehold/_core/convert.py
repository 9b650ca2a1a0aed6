"""Conversion of protocol messages and gRPC errors into the types of this package."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any, Callable

import grpc
from google.protobuf.any_pb2 import Any as AnyProto
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2, status_pb2

from leasehold import errors
from leasehold.errors import Closure, ClosureCause, Contention, Holder, Loss, LostReason, StoreRecovery
from leasehold.v1 import inspection_service_pb2 as inspection
from leasehold.v1 import lock_service_pb2 as hold
from leasehold.v1 import types_pb2 as pb

_ERROR_CLASSES: dict[int, Callable[[str, float | None], errors.AcquireError]] = {
    pb.ERROR_REASON_LIMIT_MISMATCH: errors.LimitMismatch,
    pb.ERROR_REASON_UPGRADE_DENIED: errors.UpgradeDenied,
    pb.ERROR_REASON_INVALID_FIELD: errors.Invalid,
    pb.ERROR_REASON_QUEUE_FULL: errors.QueueFull,
    pb.ERROR_REASON_QUOTA_EXCEEDED: errors.QuotaExceeded,
    pb.ERROR_REASON_TOO_MANY_LEASES: errors.QuotaExceeded,
    pb.ERROR_REASON_STORE_FULL: errors.StoreFull,
    pb.ERROR_REASON_UNSUPPORTED_BY_STORE: errors.UnsupportedByStore,
    pb.ERROR_REASON_UNAUTHENTICATED: errors.Unauthenticated,
    pb.ERROR_REASON_PERMISSION_DENIED: errors.PermissionDenied,
    pb.ERROR_REASON_STORE_UNAVAILABLE: errors.Unavailable,
    pb.ERROR_REASON_DRAINING: errors.Unavailable,
    pb.ERROR_REASON_OVERLOADED: errors.Unavailable,
    pb.ERROR_REASON_TOO_MANY_ATTEMPTS: errors.Unavailable,
    pb.ERROR_REASON_STORE_RECOVERING: errors.StoreRecovering,
    pb.ERROR_REASON_INTERNAL: errors.Internal,
}
_LOST_REASON_OF_ERROR = {
    pb.ERROR_REASON_LEASE_EXPIRED: LostReason.EXPIRED,
    pb.ERROR_REASON_LEASE_REVOKED: LostReason.REVOKED,
    pb.ERROR_REASON_LEASE_NOT_FOUND: LostReason.STORE_LOST,
    pb.ERROR_REASON_STALE_ATTACH: LostReason.MOVED,
}
_LOST_REASON_OF_END = {
    pb.LEASE_END_REASON_RELEASED: LostReason.RELEASED,
    pb.LEASE_END_REASON_EXPIRED: LostReason.EXPIRED,
    pb.LEASE_END_REASON_REVOKED: LostReason.REVOKED,
    pb.LEASE_END_REASON_STORE_LOST: LostReason.STORE_LOST,
    pb.LEASE_END_REASON_MAX_HOLD: LostReason.MAX_HOLD,
    pb.LEASE_END_REASON_MOVED: LostReason.MOVED,
    pb.LEASE_END_REASON_CREDENTIAL_EXPIRED: LostReason.CREDENTIAL_EXPIRED,
}
_CLOSURE_CAUSES = {
    pb.CLOSURE_CAUSE_LOCK_DELAY: ClosureCause.LOCK_DELAY,
    pb.CLOSURE_CAUSE_AT_LEAST: ClosureCause.AT_LEAST,
    pb.CLOSURE_CAUSE_OPERATOR: ClosureCause.OPERATOR,
}
#: Status codes of calls that may have been executed nevertheless, and are repeated. A broker also cancels a wait if the
#: client sent no heartbeat for too long.
_RETRYABLE_CODES = {
    code.value[0]
    for code in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    )
}
_ERROR_REASONS: dict[str, Any] = dict(pb.ErrorReason.items())
_STATUS_DETAILS_KEY = "grpc-status-details-bin"


def to_seconds(duration: Duration) -> float:
    """Returns a duration in seconds; an unset or negative one is 0."""
    return max(0.0, duration.seconds + duration.nanos / 1e9)


def to_duration(seconds: float) -> Duration:
    """Converts seconds to the protocol message."""
    whole_seconds, nanos = divmod(round(seconds * 1e9), 10**9)
    return Duration(seconds=whole_seconds, nanos=nanos)


def _to_datetime(timestamp: Timestamp) -> datetime:
    return timestamp.ToDatetime().replace(tzinfo=timezone.utc)


def to_holder(message: pb.Holder) -> Holder:
    """Converts a holder."""
    return Holder(
        lease_id=message.lease_id,
        owner=message.owner.id,
        reason=message.owner.reason,
        fencing_token=message.fencing_token,
        since=_to_datetime(message.since_time) if message.HasField("since_time") else None,
        remaining=to_seconds(message.remaining),
    )


def error_from_refused(refused: hold.Refused) -> errors.AcquireError:
    """Converts the rejection of a call to an error."""
    retry_after = to_seconds(refused.retry_after) if refused.HasField("retry_after") else None
    if refused.reason == pb.ERROR_REASON_LOCK_HELD:
        return errors.Held(_contention(refused, retry_after))
    if refused.reason in (pb.ERROR_REASON_WAIT_TIMEOUT, pb.ERROR_REASON_STILL_QUEUED):
        return errors.WaitTimeout(_contention(refused, retry_after))
    if refused.reason in _LOST_REASON_OF_ERROR:
        return errors.LeaseLost(loss_from_refused(refused))
    return _ERROR_CLASSES.get(refused.reason, errors.Other)(refused.message, retry_after)


def _contention(refused: hold.Refused, retry_after: float | None) -> Contention:
    message = pb.Contention()
    for detail in refused.details:
        if detail.Unpack(message):
            break
    holders = [to_holder(holder) for holder in message.holders]
    return Contention(refused.message, holders, message.queue_length, retry_after, closure_of(message))


def closure_of(message: pb.Contention | hold.Queued | inspection.Lock) -> Closure | None:
    """Converts the closure in a message, or returns None if the lock is not closed."""
    if not message.HasField("closure"):
        return None
    closure = message.closure
    return Closure(
        cause=_CLOSURE_CAUSES.get(closure.cause, ClosureCause.OTHER),
        owner=closure.owner.id,
        reason=closure.owner.reason,
        until=_to_datetime(closure.until_time) if closure.HasField("until_time") else None,
        remaining=to_seconds(closure.remaining),
    )


def recovery_of(message: hold.Queued) -> StoreRecovery | None:
    """Converts the recovery of the store in a message, or returns None if the store grants locks."""
    return _to_recovery(message.recovery) if message.HasField("recovery") else None


def recovery_from_refused(refused: hold.Refused) -> StoreRecovery | None:
    """Returns the recovery of the store for which a call was rejected, or None."""
    message = pb.StoreRecovery()
    is_found = any(detail.Unpack(message) for detail in refused.details)
    return _to_recovery(message) if is_found else None


def _to_recovery(message: pb.StoreRecovery) -> StoreRecovery:
    since = _to_datetime(message.since_time) if message.HasField("since_time") else None
    return StoreRecovery(message.cause, since, to_seconds(message.remaining))


def loss_from_refused(refused: hold.Refused) -> Loss:
    """Converts a rejection that reports the end of a lease."""
    reason = _LOST_REASON_OF_ERROR.get(refused.reason, LostReason.OTHER)
    with_text = reason in (LostReason.REVOKED, LostReason.OTHER)
    return Loss(reason, refused.message if with_text else "")


def loss_from_ended(ended: hold.LeaseEnded) -> Loss:
    """Converts the broker's notification that a lease has ended."""
    reason = _LOST_REASON_OF_END.get(ended.reason, LostReason.OTHER)
    with_text = reason in (LostReason.REVOKED, LostReason.OTHER)
    return Loss(reason, ended.message if with_text else "")


def is_retryable(refused: hold.Refused) -> bool:
    """Returns true if a rejected call may have been executed nevertheless, and is to be repeated."""
    return refused.code in _RETRYABLE_CODES


def refused_from_status(error: grpc.RpcError) -> hold.Refused:
    """Converts the status of a unary call to the rejection that a stream would have sent."""
    refused = hold.Refused(code=error.code().value[0], message=error.details() or "")
    for detail in _status_details(error.trailing_metadata() or ()):
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            refused.reason = _ERROR_REASONS.get(f"ERROR_REASON_{info.reason}", pb.ERROR_REASON_UNSPECIFIED)
        elif detail.Unpack(retry):
            refused.retry_after.CopyFrom(retry.retry_delay)
        else:
            refused.details.append(detail)
    return refused


def _status_details(metadata: Iterable[Any]) -> list[AnyProto]:
    for key, value in metadata:
        if key == _STATUS_DETAILS_KEY:
            return list(status_pb2.Status.FromString(value).details)
    return []
