"""One lease stream as its client sees it: what was sent when, and whether the other side answers."""

from __future__ import annotations

import enum
import queue
import threading
from collections import deque
from typing import Any, Callable, NamedTuple

import grpc

from leasehold._core import clock
from leasehold._core.endpoint import Brokers, Endpoint
from leasehold._core.source import LOOK_EVERY
from leasehold.errors import InvalidCredential
from leasehold.v1 import inspection_service_pb2 as inspection
from leasehold.v1 import lock_service_pb2 as pb

#: Heartbeats whose time of sending is remembered. An acknowledgement of an older one is of no use.
BEATS_KEPT = 256
#: A unary call without an answer is repeated then.
_CALL_LIMIT = 5.0
#: How long after empty headers a stream may turn out to be refused.
_REFUSED_WITHIN = 0.1


class Kind(enum.Enum):
    """What a call of the stream does."""

    ACQUIRE = enum.auto()
    ATTACH = enum.auto()
    RELEASE = enum.auto()
    CREDENTIAL = enum.auto()
    NOTHING = enum.auto()


class About(NamedTuple):
    """What a call of the stream is about: a request, a lease, or the part of one with this number."""

    kind: Kind
    key: str = ""
    part: int | None = None


class Listener:
    """Who is told of a link, in the link's own thread."""

    def __init__(
        self,
        opened: Callable[[Link], None],
        failed: Callable[[Link, str, bool], None],
        heard: Callable[[Link, pb.HoldResponse], None],
        broken: Callable[[Link], None],
    ) -> None:
        self.opened, self.failed, self.heard, self.broken = opened, failed, heard, broken


class Link:
    """One stream on a connection of its own. Everything but its reading is done by one thread."""

    def __init__(self, brokers: Brokers, at: int, listener: Listener) -> None:
        """Raises InvalidCredential if there is none to show."""
        self._source = brokers.source
        # What the broker knows the stream by, and what it is to be from now on.
        self._credential = self._source.now()
        self._showing: str | None = None
        self._looked_at = clock.now()
        self.endpoint = brokers.endpoints[at % len(brokers.endpoints)]
        self.begun_at = clock.now()
        self._channel = self.endpoint.channel(brokers.tls)
        # Read by gRPC, in a thread of its own.
        self._requests: queue.SimpleQueue[pb.HoldRequest | None] = queue.SimpleQueue()
        self._calls: dict[int, tuple[About, float]] = {}
        self._last_call = 0
        self._beats: deque[float] = deque(maxlen=BEATS_KEPT)
        self._last_beat = 0
        self._unanswered: float | None = None
        stub = self._channel.stream_stream(
            "/leasehold.v1.LockService/Hold",
            request_serializer=pb.HoldRequest.SerializeToString,
            response_deserializer=pb.HoldResponse.FromString,
        )
        self._stream: Any = stub(iter(self._requests.get, None), metadata=self._metadata())
        reader = threading.Thread(target=self._read, args=(listener,), name="leasehold-stream", daemon=True)
        reader.start()

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return () if self._credential is None else (("authorization", self._credential),)

    def _read(self, listener: Listener) -> None:
        is_open, is_denied = False, False
        try:
            if self._waits_until_open():
                is_open = True
                listener.opened(self)
            for response in self._stream:
                listener.heard(self, response)
            why = "the broker ended the stream"
        except grpc.RpcError as error:
            why = why_not(self.endpoint, error)
            # A credential that was replaced meanwhile says nothing of the next one.
            is_denied = error.code() is grpc.StatusCode.UNAUTHENTICATED and self._newest() == self._credential
        finally:
            self._requests.put(None)
        if is_open:
            listener.broken(self)
        else:
            listener.failed(self, why, is_denied)
        self._channel.close()

    def _waits_until_open(self) -> bool:
        # For the broker's headers, or for the end. A refusal at once has no headers of its own, and is told a
        # moment after they are said to be empty.
        if not self._stream.initial_metadata():
            ended = threading.Event()
            if not self._stream.add_callback(ended.set):
                return False
            ended.wait(_REFUSED_WITHIN)
        return not self._stream.done()

    def heard(self) -> None:
        """The other side lives."""
        self._unanswered = None

    def call(self, about: About, message: pb.HoldRequest, call_id: int) -> None:
        """Sends a call that has this id, from next_call."""
        self._calls[call_id] = (about, clock.now())
        self.send(message)

    def next_call(self) -> int:
        """An id that no call of the stream has had."""
        self._last_call += 1
        return self._last_call

    def send(self, message: pb.HoldRequest) -> None:
        """Sends a message that is no call. A stream that has ended says so where it is read."""
        self._requests.put(message)

    def asked(self, call_id: int) -> About | None:
        """What a call is about that has no answer yet."""
        found = self._calls.get(call_id)
        return found[0] if found else None

    def answered(self, call_id: int) -> tuple[About, float] | None:
        """What an answer is about, and when that was sent."""
        return self._calls.pop(call_id, None)

    def beat(self) -> None:
        """Sends a heartbeat."""
        now = clock.now()
        if self._unanswered is None:
            self._unanswered = now
        self._beats.append(now)
        self._last_beat += 1
        self.send(pb.HoldRequest(heartbeat=pb.Heartbeat(sequence=self._last_beat)))

    def beat_sent(self, sequence: int) -> float | None:
        """When a heartbeat was sent, or put in the way of sending: never later than that."""
        index = sequence - 1 - (self._last_beat - len(self._beats))
        return self._beats[index] if 0 <= index < len(self._beats) else None

    def last_beat(self) -> float | None:
        """When the newest heartbeat was sent."""
        return self._beats[-1] if self._beats else None

    def silent_since(self) -> float | None:
        """Since when nothing has answered a heartbeat."""
        return self._unanswered

    def watch_credential(self, now: float) -> None:
        """Shows the broker another credential as soon as there is one: a stream must not outlive its own."""
        if self._showing is not None or now < self._looked_at + LOOK_EVERY:
            return
        self._looked_at = now
        newest = self._newest()
        if newest is not None and newest != self._credential:
            self._showing = newest
            call_id = self.next_call()
            refresh = pb.RefreshCredential(call_id=call_id, authorization=newest)
            self.call(About(Kind.CREDENTIAL), pb.HoldRequest(refresh_credential=refresh), call_id)

    def _newest(self) -> str | None:
        try:
            return self._source.now()
        except InvalidCredential:
            # A file that cannot be read may be about to be replaced.
            return None

    def shown(self, is_accepted: bool) -> None:
        """What was shown is accepted, or will be shown again."""
        if is_accepted:
            self._credential = self._showing
        self._showing = None

    def release(self, request: pb.ReleaseRequest, done: Callable[[Any], None]) -> None:
        """A release by itself, beside the stream; what comes of it is told in another thread."""
        call = self._channel.unary_unary(
            "/leasehold.v1.LockService/Release",
            request_serializer=pb.ReleaseRequest.SerializeToString,
            response_deserializer=pb.ReleaseResponse.FromString,
        )
        call.future(request, timeout=_CALL_LIMIT, metadata=self._metadata()).add_done_callback(done)

    def look(self, request: inspection.GetLockRequest, done: Callable[[Any], None]) -> None:
        """A look at a lock; what comes of it is told in another thread."""
        call = self._channel.unary_unary(
            "/leasehold.v1.InspectionService/GetLock",
            request_serializer=inspection.GetLockRequest.SerializeToString,
            response_deserializer=inspection.GetLockResponse.FromString,
        )
        call.future(request, timeout=_CALL_LIMIT, metadata=self._metadata()).add_done_callback(done)

    def close(self) -> None:
        """Ends it in good order: the broker releases every lease that is on it, and ends the stream."""
        self.send(pb.HoldRequest(close=pb.Close()))
        self._requests.put(None)

    def cut(self) -> None:
        """Breaks it."""
        self._requests.put(None)
        self._stream.cancel()


def why_not(endpoint: Endpoint, error: grpc.RpcError) -> str:
    """Why a stream did not open."""
    code, text = error.code().name, error.details() or ""
    hint = ""
    if endpoint.is_tls and error.code() is grpc.StatusCode.UNAVAILABLE:
        # TLS 1.3 refuses a client after its side of the handshake, and the reason may get lost.
        hint = "; does the broker want a client certificate?"
    return f"{endpoint.name}: {code}: {text}{hint}"
