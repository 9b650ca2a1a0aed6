from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from leasehold.v1 import types_pb2 as _types_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ForceReleaseLeaseRequest(_message.Message):
    __slots__ = ("lease_id", "reason", "grace", "lock_delay", "validate_only", "request_id", "lock", "unsafe_now")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GRACE_FIELD_NUMBER: _ClassVar[int]
    LOCK_DELAY_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LOCK_FIELD_NUMBER: _ClassVar[int]
    UNSAFE_NOW_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    reason: str
    grace: _duration_pb2.Duration
    lock_delay: _duration_pb2.Duration
    validate_only: bool
    request_id: str
    lock: _types_pb2.LockRef
    unsafe_now: bool
    def __init__(self, lease_id: _Optional[str] = ..., reason: _Optional[str] = ..., grace: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., lock_delay: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., validate_only: bool = ..., request_id: _Optional[str] = ..., lock: _Optional[_Union[_types_pb2.LockRef, _Mapping]] = ..., unsafe_now: bool = ...) -> None: ...

class ForceReleaseLeaseResponse(_message.Message):
    __slots__ = ("holder", "queue_length")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    QUEUE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    holder: _types_pb2.Holder
    queue_length: int
    def __init__(self, holder: _Optional[_Union[_types_pb2.Holder, _Mapping]] = ..., queue_length: _Optional[int] = ...) -> None: ...

class CloseLockRequest(_message.Message):
    __slots__ = ("lock", "reason", "until_time", "duration", "operator")
    LOCK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UNTIL_TIME_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    lock: _types_pb2.LockRef
    reason: str
    until_time: _timestamp_pb2.Timestamp
    duration: _duration_pb2.Duration
    operator: str
    def __init__(self, lock: _Optional[_Union[_types_pb2.LockRef, _Mapping]] = ..., reason: _Optional[str] = ..., until_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., operator: _Optional[str] = ...) -> None: ...

class CloseLockResponse(_message.Message):
    __slots__ = ("closure",)
    CLOSURE_FIELD_NUMBER: _ClassVar[int]
    closure: _types_pb2.Closure
    def __init__(self, closure: _Optional[_Union[_types_pb2.Closure, _Mapping]] = ...) -> None: ...

class OpenLockRequest(_message.Message):
    __slots__ = ("lock",)
    LOCK_FIELD_NUMBER: _ClassVar[int]
    lock: _types_pb2.LockRef
    def __init__(self, lock: _Optional[_Union[_types_pb2.LockRef, _Mapping]] = ...) -> None: ...

class OpenLockResponse(_message.Message):
    __slots__ = ("closure",)
    CLOSURE_FIELD_NUMBER: _ClassVar[int]
    closure: _types_pb2.Closure
    def __init__(self, closure: _Optional[_Union[_types_pb2.Closure, _Mapping]] = ...) -> None: ...
