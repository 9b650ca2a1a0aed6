"""What a broker says, in the words of this package."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timezone
from typing import Any, Callable

import grpc
from google.protobuf.any_pb2 import Any as AnyProto
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from leasehold import errors
from leasehold.errors import Busy, Holder, Loss, LostReason
from leasehold.v1 import lock_service_pb2 as hold
from leasehold.v1 import types_pb2 as pb

_SIMPLE: dict[int, Callable[[str, float | None], errors.AcquireError]] = {
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
_LOST = {
    pb.ERROR_REASON_LEASE_EXPIRED: LostReason.EXPIRED,
    pb.ERROR_REASON_LEASE_REVOKED: LostReason.REVOKED,
    pb.ERROR_REASON_LEASE_NOT_FOUND: LostReason.STORE_LOST,
    pb.ERROR_REASON_STALE_ATTACH: LostReason.MOVED,
}
_ENDED = {
    pb.LEASE_END_REASON_RELEASED: LostReason.RELEASED,
    pb.LEASE_END_REASON_EXPIRED: LostReason.EXPIRED,
    pb.LEASE_END_REASON_REVOKED: LostReason.REVOKED,
    pb.LEASE_END_REASON_STORE_LOST: LostReason.STORE_LOST,
    pb.LEASE_END_REASON_MAX_HOLD: LostReason.MAX_HOLD,
    pb.LEASE_END_REASON_MOVED: LostReason.MOVED,
    pb.LEASE_END_REASON_CREDENTIAL_EXPIRED: LostReason.CREDENTIAL_EXPIRED,
}
#: A call with one of these may have been done all the same, and is to be repeated. A wait is cancelled by
#: the broker, too, if it has not heard of the client for long.
_OPEN = {
    one.value[0]
    for one in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    )
}
_REASONS: dict[str, Any] = dict(pb.ErrorReason.items())
_DETAILS = "grpc-status-details-bin"


def seconds(time: Duration) -> float:
    """A span of time; what is unset or negative is none."""
    return max(0.0, time.seconds + time.nanos / 1e9)


def duration(time: float) -> Duration:
    """A span of time as the broker reads it."""
    whole, nanos = divmod(round(time * 1e9), 10**9)
    return Duration(seconds=whole, nanos=nanos)


def holder(one: pb.Holder) -> Holder:
    """Somebody who holds a lock."""
    since = None
    if one.HasField("since_time"):
        since = one.since_time.ToDatetime().replace(tzinfo=timezone.utc)
    return Holder(
        lease_id=one.lease_id,
        owner=one.owner.id,
        reason=one.owner.reason,
        fencing_token=one.fencing_token,
        since=since,
        remaining=seconds(one.remaining),
    )


def refused(said: hold.Refused) -> errors.AcquireError:
    """A call that was refused."""
    retry_after = seconds(said.retry_after) if said.HasField("retry_after") else None
    if said.reason == pb.ERROR_REASON_LOCK_HELD:
        return errors.Held(_busy(said, retry_after))
    if said.reason in (pb.ERROR_REASON_WAIT_TIMEOUT, pb.ERROR_REASON_STILL_QUEUED):
        return errors.WaitTimeout(_busy(said, retry_after))
    if said.reason in _LOST:
        return errors.LeaseLost(lost(said))
    return _SIMPLE.get(said.reason, errors.Other)(said.message, retry_after)


def _busy(said: hold.Refused, retry_after: float | None) -> Busy:
    contention = pb.Contention()
    for detail in said.details:
        if detail.Unpack(contention):
            break
    holders = [holder(one) for one in contention.holders]
    return Busy(said.message, holders, contention.queue_length, retry_after)


def lost(said: hold.Refused) -> Loss:
    """What the end of a lease means to its holder."""
    reason = _LOST.get(said.reason, LostReason.OTHER)
    with_text = reason in (LostReason.REVOKED, LostReason.OTHER)
    return Loss(reason, said.message if with_text else "")


def ended(said: hold.LeaseEnded) -> Loss:
    """The broker's word that a lease is over."""
    reason = _ENDED.get(said.reason, LostReason.OTHER)
    with_text = reason in (LostReason.REVOKED, LostReason.OTHER)
    return Loss(reason, said.message if with_text else "")


def is_open(said: hold.Refused) -> bool:
    """Whether a call may have been done all the same, and is to be repeated."""
    return said.code in _OPEN


def status(error: grpc.RpcError) -> hold.Refused:
    """The status of a unary call, as the same call would have been refused on a stream."""
    said = hold.Refused(code=error.code().value[0], message=error.details() or "")
    for detail in _details(error.trailing_metadata() or ()):
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            said.reason = _REASONS.get(f"ERROR_REASON_{info.reason}", pb.ERROR_REASON_UNSPECIFIED)
        elif detail.Unpack(retry):
            said.retry_after.CopyFrom(retry.retry_delay)
        else:
            said.details.append(detail)
    return said


def _details(metadata: Iterable[Any]) -> list[AnyProto]:
    for key, value in metadata:
        if key == _DETAILS:
            return list(status_pb2.Status.FromString(value).details)
    return []
