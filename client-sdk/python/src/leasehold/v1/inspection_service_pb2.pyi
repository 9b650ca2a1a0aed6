from google.protobuf import timestamp_pb2 as _timestamp_pb2
from leasehold.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Lock(_message.Message):
    __slots__ = ("target", "state", "holders", "waiters", "queue_length", "last_fencing_token", "holder_count", "closure", "permit_usage")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Lock.State]
        STATE_HELD: _ClassVar[Lock.State]
        STATE_GRANTING: _ClassVar[Lock.State]
        STATE_CLOSED: _ClassVar[Lock.State]
        STATE_FREE: _ClassVar[Lock.State]
    STATE_UNSPECIFIED: Lock.State
    STATE_HELD: Lock.State
    STATE_GRANTING: Lock.State
    STATE_CLOSED: Lock.State
    STATE_FREE: Lock.State
    TARGET_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    WAITERS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    LAST_FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    HOLDER_COUNT_FIELD_NUMBER: _ClassVar[int]
    CLOSURE_FIELD_NUMBER: _ClassVar[int]
    PERMIT_USAGE_FIELD_NUMBER: _ClassVar[int]
    target: _types_pb2.LockTarget
    state: Lock.State
    holders: _containers.RepeatedCompositeFieldContainer[_types_pb2.Holder]
    waiters: _containers.RepeatedCompositeFieldContainer[_types_pb2.Holder]
    queue_length: int
    last_fencing_token: int
    holder_count: int
    closure: _types_pb2.Closure
    permit_usage: PermitUsage
    def __init__(self, target: _Optional[_Union[_types_pb2.LockTarget, _Mapping]] = ..., state: _Optional[_Union[Lock.State, str]] = ..., holders: _Optional[_Iterable[_Union[_types_pb2.Holder, _Mapping]]] = ..., waiters: _Optional[_Iterable[_Union[_types_pb2.Holder, _Mapping]]] = ..., queue_length: _Optional[int] = ..., last_fencing_token: _Optional[int] = ..., holder_count: _Optional[int] = ..., closure: _Optional[_Union[_types_pb2.Closure, _Mapping]] = ..., permit_usage: _Optional[_Union[PermitUsage, _Mapping]] = ...) -> None: ...

class PermitUsage(_message.Message):
    __slots__ = ("limit", "used", "is_limit_set")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    IS_LIMIT_SET_FIELD_NUMBER: _ClassVar[int]
    limit: int
    used: int
    is_limit_set: bool
    def __init__(self, limit: _Optional[int] = ..., used: _Optional[int] = ..., is_limit_set: bool = ...) -> None: ...

class GetLockRequest(_message.Message):
    __slots__ = ("namespace", "name")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class GetLockResponse(_message.Message):
    __slots__ = ("lock",)
    LOCK_FIELD_NUMBER: _ClassVar[int]
    lock: Lock
    def __init__(self, lock: _Optional[_Union[Lock, _Mapping]] = ...) -> None: ...

class ListLocksRequest(_message.Message):
    __slots__ = ("namespace", "name_prefix", "owner_id", "page_size", "page_token")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_PREFIX_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name_prefix: str
    owner_id: str
    page_size: int
    page_token: str
    def __init__(self, namespace: _Optional[str] = ..., name_prefix: _Optional[str] = ..., owner_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListLocksResponse(_message.Message):
    __slots__ = ("locks", "next_page_token")
    LOCKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    locks: _containers.RepeatedCompositeFieldContainer[Lock]
    next_page_token: str
    def __init__(self, locks: _Optional[_Iterable[_Union[Lock, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchLocksRequest(_message.Message):
    __slots__ = ("namespace", "name_prefix", "resume_token")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_PREFIX_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name_prefix: str
    resume_token: str
    def __init__(self, namespace: _Optional[str] = ..., name_prefix: _Optional[str] = ..., resume_token: _Optional[str] = ...) -> None: ...

class WatchLocksResponse(_message.Message):
    __slots__ = ("type", "subject", "event_time", "resume_token")
    class EventType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        EVENT_TYPE_UNSPECIFIED: _ClassVar[WatchLocksResponse.EventType]
        EVENT_TYPE_ACQUIRED: _ClassVar[WatchLocksResponse.EventType]
        EVENT_TYPE_RELEASED: _ClassVar[WatchLocksResponse.EventType]
        EVENT_TYPE_EXPIRED: _ClassVar[WatchLocksResponse.EventType]
        EVENT_TYPE_REVOKED: _ClassVar[WatchLocksResponse.EventType]
        EVENT_TYPE_QUEUED: _ClassVar[WatchLocksResponse.EventType]
        EVENT_TYPE_ABANDONED: _ClassVar[WatchLocksResponse.EventType]
        EVENT_TYPE_GAP: _ClassVar[WatchLocksResponse.EventType]
        EVENT_TYPE_BOOKMARK: _ClassVar[WatchLocksResponse.EventType]
        EVENT_TYPE_CLOSED: _ClassVar[WatchLocksResponse.EventType]
        EVENT_TYPE_OPENED: _ClassVar[WatchLocksResponse.EventType]
    EVENT_TYPE_UNSPECIFIED: WatchLocksResponse.EventType
    EVENT_TYPE_ACQUIRED: WatchLocksResponse.EventType
    EVENT_TYPE_RELEASED: WatchLocksResponse.EventType
    EVENT_TYPE_EXPIRED: WatchLocksResponse.EventType
    EVENT_TYPE_REVOKED: WatchLocksResponse.EventType
    EVENT_TYPE_QUEUED: WatchLocksResponse.EventType
    EVENT_TYPE_ABANDONED: WatchLocksResponse.EventType
    EVENT_TYPE_GAP: WatchLocksResponse.EventType
    EVENT_TYPE_BOOKMARK: WatchLocksResponse.EventType
    EVENT_TYPE_CLOSED: WatchLocksResponse.EventType
    EVENT_TYPE_OPENED: WatchLocksResponse.EventType
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    type: WatchLocksResponse.EventType
    subject: _types_pb2.Holder
    event_time: _timestamp_pb2.Timestamp
    resume_token: str
    def __init__(self, type: _Optional[_Union[WatchLocksResponse.EventType, str]] = ..., subject: _Optional[_Union[_types_pb2.Holder, _Mapping]] = ..., event_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., resume_token: _Optional[str] = ...) -> None: ...
