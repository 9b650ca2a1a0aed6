from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LockMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOCK_MODE_UNSPECIFIED: _ClassVar[LockMode]
    LOCK_MODE_EXCLUSIVE: _ClassVar[LockMode]
    LOCK_MODE_SHARED: _ClassVar[LockMode]
    LOCK_MODE_SEMAPHORE: _ClassVar[LockMode]

class LeaseEndReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEASE_END_REASON_UNSPECIFIED: _ClassVar[LeaseEndReason]
    LEASE_END_REASON_RELEASED: _ClassVar[LeaseEndReason]
    LEASE_END_REASON_EXPIRED: _ClassVar[LeaseEndReason]
    LEASE_END_REASON_REVOKED: _ClassVar[LeaseEndReason]
    LEASE_END_REASON_STORE_LOST: _ClassVar[LeaseEndReason]
    LEASE_END_REASON_MAX_HOLD: _ClassVar[LeaseEndReason]
    LEASE_END_REASON_MOVED: _ClassVar[LeaseEndReason]
    LEASE_END_REASON_CREDENTIAL_EXPIRED: _ClassVar[LeaseEndReason]

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_LOCK_HELD: _ClassVar[ErrorReason]
    ERROR_REASON_WAIT_TIMEOUT: _ClassVar[ErrorReason]
    ERROR_REASON_LEASE_EXPIRED: _ClassVar[ErrorReason]
    ERROR_REASON_LEASE_REVOKED: _ClassVar[ErrorReason]
    ERROR_REASON_STALE_TOKEN: _ClassVar[ErrorReason]
    ERROR_REASON_LEASE_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_HOLDER: _ClassVar[ErrorReason]
    ERROR_REASON_LIMIT_MISMATCH: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_FIELD: _ClassVar[ErrorReason]
    ERROR_REASON_REQUEST_ID_REUSED: _ClassVar[ErrorReason]
    ERROR_REASON_QUOTA_EXCEEDED: _ClassVar[ErrorReason]
    ERROR_REASON_QUEUE_FULL: _ClassVar[ErrorReason]
    ERROR_REASON_STORE_UNAVAILABLE: _ClassVar[ErrorReason]
    ERROR_REASON_DRAINING: _ClassVar[ErrorReason]
    ERROR_REASON_STORE_RECOVERING: _ClassVar[ErrorReason]
    ERROR_REASON_CANCELLED: _ClassVar[ErrorReason]
    ERROR_REASON_UNSUPPORTED_BY_STORE: _ClassVar[ErrorReason]
    ERROR_REASON_UPGRADE_DENIED: _ClassVar[ErrorReason]
    ERROR_REASON_TOO_MANY_LEASES: _ClassVar[ErrorReason]
    ERROR_REASON_CALL_ID_REUSED: _ClassVar[ErrorReason]
    ERROR_REASON_UNAUTHENTICATED: _ClassVar[ErrorReason]
    ERROR_REASON_PERMISSION_DENIED: _ClassVar[ErrorReason]
    ERROR_REASON_OVERLOADED: _ClassVar[ErrorReason]
    ERROR_REASON_INTERNAL: _ClassVar[ErrorReason]
    ERROR_REASON_STALE_ATTACH: _ClassVar[ErrorReason]
    ERROR_REASON_STORE_FULL: _ClassVar[ErrorReason]
    ERROR_REASON_TOO_MANY_ATTEMPTS: _ClassVar[ErrorReason]
    ERROR_REASON_STILL_QUEUED: _ClassVar[ErrorReason]

class ClosureCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CLOSURE_CAUSE_UNSPECIFIED: _ClassVar[ClosureCause]
    CLOSURE_CAUSE_LOCK_DELAY: _ClassVar[ClosureCause]
    CLOSURE_CAUSE_AT_LEAST: _ClassVar[ClosureCause]
    CLOSURE_CAUSE_OPERATOR: _ClassVar[ClosureCause]
LOCK_MODE_UNSPECIFIED: LockMode
LOCK_MODE_EXCLUSIVE: LockMode
LOCK_MODE_SHARED: LockMode
LOCK_MODE_SEMAPHORE: LockMode
LEASE_END_REASON_UNSPECIFIED: LeaseEndReason
LEASE_END_REASON_RELEASED: LeaseEndReason
LEASE_END_REASON_EXPIRED: LeaseEndReason
LEASE_END_REASON_REVOKED: LeaseEndReason
LEASE_END_REASON_STORE_LOST: LeaseEndReason
LEASE_END_REASON_MAX_HOLD: LeaseEndReason
LEASE_END_REASON_MOVED: LeaseEndReason
LEASE_END_REASON_CREDENTIAL_EXPIRED: LeaseEndReason
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_LOCK_HELD: ErrorReason
ERROR_REASON_WAIT_TIMEOUT: ErrorReason
ERROR_REASON_LEASE_EXPIRED: ErrorReason
ERROR_REASON_LEASE_REVOKED: ErrorReason
ERROR_REASON_STALE_TOKEN: ErrorReason
ERROR_REASON_LEASE_NOT_FOUND: ErrorReason
ERROR_REASON_NOT_HOLDER: ErrorReason
ERROR_REASON_LIMIT_MISMATCH: ErrorReason
ERROR_REASON_INVALID_FIELD: ErrorReason
ERROR_REASON_REQUEST_ID_REUSED: ErrorReason
ERROR_REASON_QUOTA_EXCEEDED: ErrorReason
ERROR_REASON_QUEUE_FULL: ErrorReason
ERROR_REASON_STORE_UNAVAILABLE: ErrorReason
ERROR_REASON_DRAINING: ErrorReason
ERROR_REASON_STORE_RECOVERING: ErrorReason
ERROR_REASON_CANCELLED: ErrorReason
ERROR_REASON_UNSUPPORTED_BY_STORE: ErrorReason
ERROR_REASON_UPGRADE_DENIED: ErrorReason
ERROR_REASON_TOO_MANY_LEASES: ErrorReason
ERROR_REASON_CALL_ID_REUSED: ErrorReason
ERROR_REASON_UNAUTHENTICATED: ErrorReason
ERROR_REASON_PERMISSION_DENIED: ErrorReason
ERROR_REASON_OVERLOADED: ErrorReason
ERROR_REASON_INTERNAL: ErrorReason
ERROR_REASON_STALE_ATTACH: ErrorReason
ERROR_REASON_STORE_FULL: ErrorReason
ERROR_REASON_TOO_MANY_ATTEMPTS: ErrorReason
ERROR_REASON_STILL_QUEUED: ErrorReason
CLOSURE_CAUSE_UNSPECIFIED: ClosureCause
CLOSURE_CAUSE_LOCK_DELAY: ClosureCause
CLOSURE_CAUSE_AT_LEAST: ClosureCause
CLOSURE_CAUSE_OPERATOR: ClosureCause

class LockRef(_message.Message):
    __slots__ = ("namespace", "name")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class LockTarget(_message.Message):
    __slots__ = ("namespace", "name", "mode", "permits", "limit")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PERMITS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    mode: LockMode
    permits: int
    limit: int
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., mode: _Optional[_Union[LockMode, str]] = ..., permits: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class Owner(_message.Message):
    __slots__ = ("id", "reason", "labels")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    id: str
    reason: str
    labels: _containers.ScalarMap[str, str]
    def __init__(self, id: _Optional[str] = ..., reason: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("target", "fencing_token", "acquire_time", "hold_count")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    HOLD_COUNT_FIELD_NUMBER: _ClassVar[int]
    target: LockTarget
    fencing_token: int
    acquire_time: _timestamp_pb2.Timestamp
    hold_count: int
    def __init__(self, target: _Optional[_Union[LockTarget, _Mapping]] = ..., fencing_token: _Optional[int] = ..., acquire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., hold_count: _Optional[int] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("lease_id", "lease_token", "grants", "ttl", "heartbeat_interval", "expire_time")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    lease_token: str
    grants: _containers.RepeatedCompositeFieldContainer[Grant]
    ttl: _duration_pb2.Duration
    heartbeat_interval: _duration_pb2.Duration
    expire_time: _timestamp_pb2.Timestamp
    def __init__(self, lease_id: _Optional[str] = ..., lease_token: _Optional[str] = ..., grants: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., heartbeat_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., expire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Contention(_message.Message):
    __slots__ = ("holders", "queue_length", "retry_after", "closure")
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    CLOSURE_FIELD_NUMBER: _ClassVar[int]
    holders: _containers.RepeatedCompositeFieldContainer[Holder]
    queue_length: int
    retry_after: _duration_pb2.Duration
    closure: Closure
    def __init__(self, holders: _Optional[_Iterable[_Union[Holder, _Mapping]]] = ..., queue_length: _Optional[int] = ..., retry_after: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., closure: _Optional[_Union[Closure, _Mapping]] = ...) -> None: ...

class Closure(_message.Message):
    __slots__ = ("cause", "owner", "until_time", "remaining")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    UNTIL_TIME_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    cause: ClosureCause
    owner: Owner
    until_time: _timestamp_pb2.Timestamp
    remaining: _duration_pb2.Duration
    def __init__(self, cause: _Optional[_Union[ClosureCause, str]] = ..., owner: _Optional[_Union[Owner, _Mapping]] = ..., until_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., remaining: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class StoreRecovery(_message.Message):
    __slots__ = ("cause", "since_time", "remaining")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    SINCE_TIME_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    cause: str
    since_time: _timestamp_pb2.Timestamp
    remaining: _duration_pb2.Duration
    def __init__(self, cause: _Optional[str] = ..., since_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., remaining: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Holder(_message.Message):
    __slots__ = ("lease_id", "owner", "target", "fencing_token", "since_time", "remaining")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SINCE_TIME_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    owner: Owner
    target: LockTarget
    fencing_token: int
    since_time: _timestamp_pb2.Timestamp
    remaining: _duration_pb2.Duration
    def __init__(self, lease_id: _Optional[str] = ..., owner: _Optional[_Union[Owner, _Mapping]] = ..., target: _Optional[_Union[LockTarget, _Mapping]] = ..., fencing_token: _Optional[int] = ..., since_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., remaining: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...
