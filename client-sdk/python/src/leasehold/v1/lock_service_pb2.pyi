from google.protobuf import any_pb2 as _any_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from leasehold.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AcquireRequest(_message.Message):
    __slots__ = ("target", "owner", "ttl", "wait_timeout", "request_id", "under", "max_hold", "lock_delay", "disconnect_grace", "at_least")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    WAIT_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    UNDER_FIELD_NUMBER: _ClassVar[int]
    MAX_HOLD_FIELD_NUMBER: _ClassVar[int]
    LOCK_DELAY_FIELD_NUMBER: _ClassVar[int]
    DISCONNECT_GRACE_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    target: _types_pb2.LockTarget
    owner: _types_pb2.Owner
    ttl: _duration_pb2.Duration
    wait_timeout: _duration_pb2.Duration
    request_id: str
    under: _types_pb2.Lease
    max_hold: _duration_pb2.Duration
    lock_delay: _duration_pb2.Duration
    disconnect_grace: _duration_pb2.Duration
    at_least: _duration_pb2.Duration
    def __init__(self, target: _Optional[_Union[_types_pb2.LockTarget, _Mapping]] = ..., owner: _Optional[_Union[_types_pb2.Owner, _Mapping]] = ..., ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., wait_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., request_id: _Optional[str] = ..., under: _Optional[_Union[_types_pb2.Lease, _Mapping]] = ..., max_hold: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., lock_delay: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., disconnect_grace: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., at_least: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class AcquireResponse(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: _types_pb2.Lease
    def __init__(self, lease: _Optional[_Union[_types_pb2.Lease, _Mapping]] = ...) -> None: ...

class AcquireAllRequest(_message.Message):
    __slots__ = ("targets", "owner", "ttl", "wait_timeout", "request_id", "max_hold", "lock_delay", "disconnect_grace", "at_least")
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    WAIT_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_HOLD_FIELD_NUMBER: _ClassVar[int]
    LOCK_DELAY_FIELD_NUMBER: _ClassVar[int]
    DISCONNECT_GRACE_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    targets: _containers.RepeatedCompositeFieldContainer[_types_pb2.LockTarget]
    owner: _types_pb2.Owner
    ttl: _duration_pb2.Duration
    wait_timeout: _duration_pb2.Duration
    request_id: str
    max_hold: _duration_pb2.Duration
    lock_delay: _duration_pb2.Duration
    disconnect_grace: _duration_pb2.Duration
    at_least: _duration_pb2.Duration
    def __init__(self, targets: _Optional[_Iterable[_Union[_types_pb2.LockTarget, _Mapping]]] = ..., owner: _Optional[_Union[_types_pb2.Owner, _Mapping]] = ..., ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., wait_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., request_id: _Optional[str] = ..., max_hold: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., lock_delay: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., disconnect_grace: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., at_least: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class AcquireAllResponse(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: _types_pb2.Lease
    def __init__(self, lease: _Optional[_Union[_types_pb2.Lease, _Mapping]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("lease", "lock", "request_id")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    LOCK_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    lease: _types_pb2.Lease
    lock: _types_pb2.LockRef
    request_id: str
    def __init__(self, lease: _Optional[_Union[_types_pb2.Lease, _Mapping]] = ..., lock: _Optional[_Union[_types_pb2.LockRef, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ("already_released", "hold_count")
    ALREADY_RELEASED_FIELD_NUMBER: _ClassVar[int]
    HOLD_COUNT_FIELD_NUMBER: _ClassVar[int]
    already_released: bool
    hold_count: int
    def __init__(self, already_released: bool = ..., hold_count: _Optional[int] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("lease", "ttl")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    lease: _types_pb2.Lease
    ttl: _duration_pb2.Duration
    def __init__(self, lease: _Optional[_Union[_types_pb2.Lease, _Mapping]] = ..., ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RenewResponse(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: _types_pb2.Lease
    def __init__(self, lease: _Optional[_Union[_types_pb2.Lease, _Mapping]] = ...) -> None: ...

class HoldRequest(_message.Message):
    __slots__ = ("acquire", "acquire_all", "cancel", "attach", "heartbeat", "release", "detach", "close", "refresh_credential")
    ACQUIRE_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_ALL_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    DETACH_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    REFRESH_CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    acquire: HoldAcquire
    acquire_all: HoldAcquireAll
    cancel: CancelAcquire
    attach: AttachLease
    heartbeat: Heartbeat
    release: HoldRelease
    detach: DetachLease
    close: Close
    refresh_credential: RefreshCredential
    def __init__(self, acquire: _Optional[_Union[HoldAcquire, _Mapping]] = ..., acquire_all: _Optional[_Union[HoldAcquireAll, _Mapping]] = ..., cancel: _Optional[_Union[CancelAcquire, _Mapping]] = ..., attach: _Optional[_Union[AttachLease, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., release: _Optional[_Union[HoldRelease, _Mapping]] = ..., detach: _Optional[_Union[DetachLease, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., refresh_credential: _Optional[_Union[RefreshCredential, _Mapping]] = ...) -> None: ...

class HoldAcquire(_message.Message):
    __slots__ = ("call_id", "request", "attach_number", "traceparent")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTACH_NUMBER_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    request: AcquireRequest
    attach_number: int
    traceparent: str
    def __init__(self, call_id: _Optional[int] = ..., request: _Optional[_Union[AcquireRequest, _Mapping]] = ..., attach_number: _Optional[int] = ..., traceparent: _Optional[str] = ...) -> None: ...

class HoldAcquireAll(_message.Message):
    __slots__ = ("call_id", "request", "attach_number", "traceparent")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTACH_NUMBER_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    request: AcquireAllRequest
    attach_number: int
    traceparent: str
    def __init__(self, call_id: _Optional[int] = ..., request: _Optional[_Union[AcquireAllRequest, _Mapping]] = ..., attach_number: _Optional[int] = ..., traceparent: _Optional[str] = ...) -> None: ...

class CancelAcquire(_message.Message):
    __slots__ = ("call_id",)
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    def __init__(self, call_id: _Optional[int] = ...) -> None: ...

class AttachLease(_message.Message):
    __slots__ = ("call_id", "lease", "attach_number")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ATTACH_NUMBER_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    lease: _types_pb2.Lease
    attach_number: int
    def __init__(self, call_id: _Optional[int] = ..., lease: _Optional[_Union[_types_pb2.Lease, _Mapping]] = ..., attach_number: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class HoldRelease(_message.Message):
    __slots__ = ("call_id", "lease_id", "lock", "request_id")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LOCK_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    lease_id: str
    lock: _types_pb2.LockRef
    request_id: str
    def __init__(self, call_id: _Optional[int] = ..., lease_id: _Optional[str] = ..., lock: _Optional[_Union[_types_pb2.LockRef, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class DetachLease(_message.Message):
    __slots__ = ("call_id", "lease_id")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    lease_id: str
    def __init__(self, call_id: _Optional[int] = ..., lease_id: _Optional[str] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RefreshCredential(_message.Message):
    __slots__ = ("call_id", "authorization")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    AUTHORIZATION_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    authorization: str
    def __init__(self, call_id: _Optional[int] = ..., authorization: _Optional[str] = ...) -> None: ...

class HoldResponse(_message.Message):
    __slots__ = ("queued", "granted", "refused", "attached", "ack", "released", "ended", "release_requested", "reconnect", "done")
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    RELEASE_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    RECONNECT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    queued: Queued
    granted: Granted
    refused: Refused
    attached: LeaseAttached
    ack: HeartbeatAck
    released: Released
    ended: LeaseEnded
    release_requested: ReleaseRequested
    reconnect: Reconnect
    done: Done
    def __init__(self, queued: _Optional[_Union[Queued, _Mapping]] = ..., granted: _Optional[_Union[Granted, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., attached: _Optional[_Union[LeaseAttached, _Mapping]] = ..., ack: _Optional[_Union[HeartbeatAck, _Mapping]] = ..., released: _Optional[_Union[Released, _Mapping]] = ..., ended: _Optional[_Union[LeaseEnded, _Mapping]] = ..., release_requested: _Optional[_Union[ReleaseRequested, _Mapping]] = ..., reconnect: _Optional[_Union[Reconnect, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ...) -> None: ...

class Queued(_message.Message):
    __slots__ = ("call_id", "position", "queue_length", "holders", "heartbeat_interval", "closure", "recovery")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    CLOSURE_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    position: int
    queue_length: int
    holders: _containers.RepeatedCompositeFieldContainer[_types_pb2.Holder]
    heartbeat_interval: _duration_pb2.Duration
    closure: _types_pb2.Closure
    recovery: _types_pb2.StoreRecovery
    def __init__(self, call_id: _Optional[int] = ..., position: _Optional[int] = ..., queue_length: _Optional[int] = ..., holders: _Optional[_Iterable[_Union[_types_pb2.Holder, _Mapping]]] = ..., heartbeat_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., closure: _Optional[_Union[_types_pb2.Closure, _Mapping]] = ..., recovery: _Optional[_Union[_types_pb2.StoreRecovery, _Mapping]] = ...) -> None: ...

class Granted(_message.Message):
    __slots__ = ("call_id", "lease", "as_of_sequence")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    AS_OF_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    lease: _types_pb2.Lease
    as_of_sequence: int
    def __init__(self, call_id: _Optional[int] = ..., lease: _Optional[_Union[_types_pb2.Lease, _Mapping]] = ..., as_of_sequence: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("call_id", "reason", "code", "message", "retry_after", "details")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    reason: _types_pb2.ErrorReason
    code: int
    message: str
    retry_after: _duration_pb2.Duration
    details: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
    def __init__(self, call_id: _Optional[int] = ..., reason: _Optional[_Union[_types_pb2.ErrorReason, str]] = ..., code: _Optional[int] = ..., message: _Optional[str] = ..., retry_after: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., details: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ...) -> None: ...

class LeaseAttached(_message.Message):
    __slots__ = ("call_id", "lease_id", "heartbeat_interval")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    lease_id: str
    heartbeat_interval: _duration_pb2.Duration
    def __init__(self, call_id: _Optional[int] = ..., lease_id: _Optional[str] = ..., heartbeat_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class HeartbeatAck(_message.Message):
    __slots__ = ("sequence", "leases", "heartbeat_interval")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    leases: _containers.RepeatedCompositeFieldContainer[LeaseExtended]
    heartbeat_interval: _duration_pb2.Duration
    def __init__(self, sequence: _Optional[int] = ..., leases: _Optional[_Iterable[_Union[LeaseExtended, _Mapping]]] = ..., heartbeat_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("call_id",)
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    def __init__(self, call_id: _Optional[int] = ...) -> None: ...

class LeaseExtended(_message.Message):
    __slots__ = ("lease_id", "ttl", "queue_length", "grant_count")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    QUEUE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    GRANT_COUNT_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    ttl: _duration_pb2.Duration
    queue_length: int
    grant_count: int
    def __init__(self, lease_id: _Optional[str] = ..., ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., queue_length: _Optional[int] = ..., grant_count: _Optional[int] = ...) -> None: ...

class Released(_message.Message):
    __slots__ = ("call_id", "already_released", "hold_count")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    ALREADY_RELEASED_FIELD_NUMBER: _ClassVar[int]
    HOLD_COUNT_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    already_released: bool
    hold_count: int
    def __init__(self, call_id: _Optional[int] = ..., already_released: bool = ..., hold_count: _Optional[int] = ...) -> None: ...

class LeaseEnded(_message.Message):
    __slots__ = ("lease_id", "reason", "message")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    reason: _types_pb2.LeaseEndReason
    message: str
    def __init__(self, lease_id: _Optional[str] = ..., reason: _Optional[_Union[_types_pb2.LeaseEndReason, str]] = ..., message: _Optional[str] = ...) -> None: ...

class ReleaseRequested(_message.Message):
    __slots__ = ("lease_id", "grace", "message")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    GRACE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    grace: _duration_pb2.Duration
    message: str
    def __init__(self, lease_id: _Optional[str] = ..., grace: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., message: _Optional[str] = ...) -> None: ...

class Reconnect(_message.Message):
    __slots__ = ("delay",)
    DELAY_FIELD_NUMBER: _ClassVar[int]
    delay: _duration_pb2.Duration
    def __init__(self, delay: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class CheckFencingTokenRequest(_message.Message):
    __slots__ = ("lock", "fencing_token")
    LOCK_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    lock: _types_pb2.LockRef
    fencing_token: int
    def __init__(self, lock: _Optional[_Union[_types_pb2.LockRef, _Mapping]] = ..., fencing_token: _Optional[int] = ...) -> None: ...

class CheckFencingTokenResponse(_message.Message):
    __slots__ = ("remaining",)
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    remaining: _duration_pb2.Duration
    def __init__(self, remaining: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class SetLockLimitRequest(_message.Message):
    __slots__ = ("lock", "limit")
    LOCK_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    lock: _types_pb2.LockRef
    limit: int
    def __init__(self, lock: _Optional[_Union[_types_pb2.LockRef, _Mapping]] = ..., limit: _Optional[int] = ...) -> None: ...

class SetLockLimitResponse(_message.Message):
    __slots__ = ("previous_limit",)
    PREVIOUS_LIMIT_FIELD_NUMBER: _ClassVar[int]
    previous_limit: int
    def __init__(self, previous_limit: _Optional[int] = ...) -> None: ...
