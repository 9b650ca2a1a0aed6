"""One lease stream of a client: its calls, heartbeats, and silence of the broker."""

from __future__ import annotations

import enum
import queue
import threading
from collections import deque
from typing import Any, Callable, NamedTuple

import grpc
from google.protobuf.message import Message

from leasehold._core import clock
from leasehold._core.credential_source import CHECK_INTERVAL
from leasehold._core.endpoint import Endpoint, Endpoints
from leasehold.errors import InvalidCredential
from leasehold.v1 import inspection_service_pb2 as inspection
from leasehold.v1 import lock_service_pb2 as pb

#: Number of heartbeats whose send time is stored. Acknowledgements of older ones are ignored.
HEARTBEATS_STORED_MAX = 256
#: Time limit of a unary call, in seconds, after which the call is repeated.
_CALL_TIMEOUT = 5.0
#: Time after empty headers in which a stream may be reported as rejected, in seconds.
_REJECTION_WINDOW = 0.1


class CallKind(enum.Enum):
    """The kind of a call on the stream."""

    ACQUIRE = enum.auto()
    ATTACH = enum.auto()
    RELEASE = enum.auto()
    CREDENTIAL = enum.auto()
    DETACH = enum.auto()


class CallSubject(NamedTuple):
    """The subject of a call on the stream: a request or a lease by its id, and the number of a partial release."""

    kind: CallKind
    key: str = ""
    partial_number: int | None = None


class StreamListener:
    """Callbacks for the events of a stream connection, called in its reader thread."""

    def __init__(
        self,
        on_open: Callable[[StreamConnection], None],
        on_open_failed: Callable[[StreamConnection, str, bool], None],
        on_message: Callable[[StreamConnection, pb.HoldResponse], None],
        on_disconnect: Callable[[StreamConnection], None],
    ) -> None:
        self.on_open, self.on_open_failed = on_open, on_open_failed
        self.on_message, self.on_disconnect = on_message, on_disconnect


class StreamConnection:
    """A lease stream on a separate connection.

    The connection's reader thread receives messages. All methods are called by the client's thread.
    """

    def __init__(self, endpoints: Endpoints, index: int, listener: StreamListener) -> None:
        """Opens a stream to the endpoint with this index. Raises InvalidCredential if the credential is unreadable."""
        self._credentials = endpoints.credentials
        # The credential that the broker has accepted for the stream, and the one whose refresh is pending.
        self._credential = self._credentials.authorization()
        self._pending_credential: str | None = None
        self._credential_checked_at = clock.now()
        self.endpoint = endpoints.all[index % len(endpoints.all)]
        self.started_at = clock.now()
        self._channel = self.endpoint.create_channel(endpoints.tls)
        # Read by a thread of gRPC.
        self._requests: queue.SimpleQueue[pb.HoldRequest | None] = queue.SimpleQueue()
        self._pending_calls: dict[int, tuple[CallSubject, float]] = {}
        self._last_call_id = 0
        self._heartbeat_times: deque[float] = deque(maxlen=HEARTBEATS_STORED_MAX)
        self._last_sequence = 0
        self._unanswered_since: float | None = None
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

    def _read(self, listener: StreamListener) -> None:
        is_open, is_unauthenticated = False, False
        try:
            if self._wait_until_open():
                is_open = True
                listener.on_open(self)
            for response in self._stream:
                listener.on_message(self, response)
            reason = "the broker ended the stream"
        except grpc.RpcError as error:
            reason = describe_failure(self.endpoint, error)
            # If the credential was replaced in the meantime, its rejection does not apply to the new one.
            is_unauthenticated = (
                error.code() is grpc.StatusCode.UNAUTHENTICATED and self._current_credential() == self._credential
            )
        finally:
            self._requests.put(None)
        if is_open:
            listener.on_disconnect(self)
        else:
            listener.on_open_failed(self, reason, is_unauthenticated)
        self._channel.close()

    def _wait_until_open(self) -> bool:
        # Waits for the headers of the broker, or for the end of the stream. A rejection without headers is reported
        # shortly after empty headers.
        if not self._stream.initial_metadata():
            ended = threading.Event()
            if not self._stream.add_callback(ended.set):
                return False
            ended.wait(_REJECTION_WINDOW)
        return not self._stream.done()

    def record_message(self) -> None:
        """Records that the broker has sent a message."""
        self._unanswered_since = None

    def send_call(self, subject: CallSubject, message: pb.HoldRequest, call_id: int) -> None:
        """Sends a call with an id that ``next_call_id`` returned."""
        self._pending_calls[call_id] = (subject, clock.now())
        self.send(message)

    def next_call_id(self) -> int:
        """Returns a new call id."""
        self._last_call_id += 1
        return self._last_call_id

    def send(self, message: pb.HoldRequest) -> None:
        """Sends a message. The end of the stream is reported to the reader only."""
        self._requests.put(message)

    def pending(self, call_id: int) -> CallSubject | None:
        """Returns the subject of a call that has no response yet."""
        call = self._pending_calls.get(call_id)
        return call[0] if call else None

    def complete(self, call_id: int) -> tuple[CallSubject, float] | None:
        """Removes a call that has a response. Returns its subject and the time at which it was sent."""
        return self._pending_calls.pop(call_id, None)

    def send_heartbeat(self) -> None:
        """Sends a heartbeat."""
        now = clock.now()
        if self._unanswered_since is None:
            self._unanswered_since = now
        self._heartbeat_times.append(now)
        self._last_sequence += 1
        self.send(pb.HoldRequest(heartbeat=pb.Heartbeat(sequence=self._last_sequence)))

    def heartbeat_sent_at(self, sequence: int) -> float | None:
        """Returns the time at which a heartbeat was enqueued, which is not later than its sending, if it is stored."""
        index = sequence - 1 - (self._last_sequence - len(self._heartbeat_times))
        return self._heartbeat_times[index] if 0 <= index < len(self._heartbeat_times) else None

    def last_heartbeat_at(self) -> float | None:
        """Returns the time at which the newest heartbeat was sent."""
        return self._heartbeat_times[-1] if self._heartbeat_times else None

    def unanswered_since(self) -> float | None:
        """Returns the send time of the first heartbeat without a response, if there is one."""
        return self._unanswered_since

    def refresh_credential(self, now: float) -> None:
        """Sends a changed credential to the broker, so that the stream outlives the credential it was opened with."""
        if self._pending_credential is not None or now < self._credential_checked_at + CHECK_INTERVAL:
            return
        self._credential_checked_at = now
        current = self._current_credential()
        if current is not None and current != self._credential:
            self._pending_credential = current
            call_id = self.next_call_id()
            refresh = pb.RefreshCredential(call_id=call_id, authorization=current)
            self.send_call(CallSubject(CallKind.CREDENTIAL), pb.HoldRequest(refresh_credential=refresh), call_id)

    def _current_credential(self) -> str | None:
        try:
            return self._credentials.authorization()
        except InvalidCredential:
            # A file that cannot be read may be about to be replaced.
            return None

    def on_credential_result(self, is_accepted: bool) -> None:
        """Handles the result of a refresh. A rejected credential is sent again later."""
        if is_accepted:
            self._credential = self._pending_credential
        self._pending_credential = None

    def release(self, request: pb.ReleaseRequest, callback: Callable[[Any], None]) -> None:
        """Sends a release as a unary call. The callback runs in another thread."""
        self._send_unary("LockService/Release", request, pb.ReleaseResponse, callback)

    def get_lock(self, request: inspection.GetLockRequest, callback: Callable[[Any], None]) -> None:
        """Sends an inspection of a lock as a unary call. The callback runs in another thread."""
        self._send_unary("InspectionService/GetLock", request, inspection.GetLockResponse, callback)

    def set_lock_limit(self, request: pb.SetLockLimitRequest, callback: Callable[[Any], None]) -> None:
        """Sends a change of a limit as a unary call. The callback runs in another thread."""
        self._send_unary("LockService/SetLockLimit", request, pb.SetLockLimitResponse, callback)

    def _send_unary(
        self, method: str, request: Message, response_type: type[Message], callback: Callable[[Any], None]
    ) -> None:
        call = self._channel.unary_unary(
            f"/leasehold.v1.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response_type.FromString,
        )
        call.future(request, timeout=_CALL_TIMEOUT, metadata=self._metadata()).add_done_callback(callback)

    def close(self) -> None:
        """Closes the stream gracefully: the broker releases every lease that is attached to it, and ends it."""
        self.send(pb.HoldRequest(close=pb.Close()))
        self._requests.put(None)

    def cancel(self) -> None:
        """Cancels the stream without a graceful close."""
        self._requests.put(None)
        self._stream.cancel()


def describe_failure(endpoint: Endpoint, error: grpc.RpcError) -> str:
    """Returns a message with the reason for which a stream did not open."""
    code, text = error.code().name, error.details() or ""
    hint = ""
    if endpoint.is_tls and error.code() is grpc.StatusCode.UNAVAILABLE:
        # With TLS 1.3 a broker rejects a client certificate after the client has completed its handshake, and the
        # reason may be lost.
        hint = "; the broker may require a client certificate"
    return f"{endpoint.name}: {code}: {text}{hint}"
