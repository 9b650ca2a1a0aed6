"""Connections of clients and the credentials that they present: TLS, certificates and the bearer token."""

from __future__ import annotations

import asyncio
import logging
import queue
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

import grpc
import pytest
import trustme
from interfaces import Interface, acquire_and_release, create_client
from processes import Broker

import leasehold
from leasehold import TLS
from leasehold._core.credential_source import CredentialSource
from leasehold._core.endpoint import parse_endpoints
from leasehold._core.stream_connection import StreamConnection, StreamListener
from leasehold.v1 import inspection_service_pb2 as inspection
from leasehold.v1 import lock_service_pb2 as pb

#: The bearer token, which the tests search for in logs, messages and representations.
CANARY = "canary-5b1f0c8e"


class TlsRelay:
    """A TLS server that relays connections to a broker without TLS."""

    def __init__(self, broker: str, context: ssl.SSLContext) -> None:
        self._broker = broker.split(":")
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://localhost:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
                client_socket = self._context.wrap_socket(plain, server_side=True)
            except ssl.SSLError:
                continue
            except OSError:
                return
            broker_socket = socket.create_connection((self._broker[0], int(self._broker[1])))
            self._open += [client_socket, broker_socket]
            # Two threads must not read and write a TLS connection of Python at the same time without synchronization.
            # One thread that alternates between both directions is sufficient here.
            threading.Thread(target=self._relay, args=(client_socket, broker_socket), daemon=True).start()

    @staticmethod
    def _relay(client_socket: ssl.SSLSocket, broker_socket: socket.socket) -> None:
        client_socket.settimeout(0.01)
        broker_socket.settimeout(0.01)
        try:
            while True:
                for source, destination in ((client_socket, broker_socket), (broker_socket, client_socket)):
                    try:
                        data = source.recv(65536)
                    except TimeoutError:
                        continue
                    except socket.timeout:
                        continue
                    if not data:
                        return
                    destination.sendall(data)
        except OSError:
            pass
        finally:
            client_socket.close()
            broker_socket.close()

    def kill(self) -> None:
        """Closes the listener and all connections."""
        self._listener.close()
        for connection in self._open:
            connection.close()


def server_context(authority: trustme.CA, *, wants_client: bool) -> ssl.SSLContext:
    """Creates the TLS context of a server whose certificate is signed by this authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    context.set_alpn_protocols(["h2"])
    if wants_client:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def test_tls_with_certificates_of_both_sides(
    start: Callable[..., Any], shared_broker: Broker, interface: Interface, name: str
) -> None:
    authority = trustme.CA()
    context = server_context(authority, wants_client=True)
    relay: TlsRelay = start(TlsRelay, shared_broker.addr, context)
    client_certificate = authority.issue_cert("worker-1")
    key, cert = client_certificate.private_key_pem.bytes(), client_certificate.cert_chain_pems[0].bytes()
    tls = TLS(ca=authority.cert_pem.bytes(), cert=cert, key=key)
    assert b"PRIVATE" in key and "PRIVATE" not in repr(tls)
    client = create_client(interface, relay.url, tls=tls)
    await client.connect()
    await acquire_and_release(client, name)
    await client.shutdown()


async def test_a_server_with_an_untrusted_certificate_is_rejected(
    start: Callable[..., Any], shared_broker: Broker, interface: Interface
) -> None:
    relay: TlsRelay = start(TlsRelay, shared_broker.addr, server_context(trustme.CA(), wants_client=False))
    for tls in (None, TLS(ca=trustme.CA().cert_pem.bytes())):
        client = create_client(interface, relay.url, tls=tls)
        with pytest.raises(leasehold.Unreachable, match="client certificate"):
            await client.connect()
        await client.shutdown()


class RejectingRecorder(grpc.GenericRpcHandler):
    """A broker that records the credential of each call and rejects the call; streams only after ``go_on`` is set."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str | None]] = []
        self.may_reject = threading.Event()
        self.may_reject.set()

    def service(self, handler_call_details: Any) -> Any:
        """Handles a call."""
        metadata = dict(handler_call_details.invocation_metadata)
        self.calls.append((handler_call_details.method, metadata.get("authorization")))

        def reject(_: Any, context: grpc.ServicerContext) -> Any:
            if handler_call_details.method.endswith("/Hold"):
                self.may_reject.wait(10)
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the credential is rejected")

        return grpc.stream_stream_rpc_method_handler(reject)


@pytest.fixture
def recorder() -> Iterator[tuple[RejectingRecorder, str]]:
    """Yields a recorder and its endpoint."""
    handler = RejectingRecorder()
    server = grpc.server(ThreadPoolExecutor(2), handlers=[handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield handler, f"http://127.0.0.1:{port}"
    server.stop(None).wait()


async def test_the_token_is_sent_with_every_stream_and_never_logged(
    recorder: tuple[RejectingRecorder, str], interface: Interface, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    handler, url = recorder
    client = create_client(interface, url, bearer_token=CANARY)
    with pytest.raises(leasehold.CredentialRefused) as caught:
        await client.connect()
    with pytest.raises(leasehold.Unauthenticated):
        await acquire_and_release(client, "a")
    await client.shutdown()
    assert handler.calls and set(handler.calls) == {("/leasehold.v1.LockService/Hold", f"Bearer {CANARY}")}
    texts = [caplog.text, str(caught.value), repr(caught.value), repr(client.inner)]
    texts.append(repr(parse_endpoints(url, None, CredentialSource(CANARY))))
    assert "the credential is rejected" in caplog.text
    assert not any(CANARY in text for text in texts)


class CredentialRecorder(grpc.GenericRpcHandler):
    """A broker that records the credential of each stream and its refreshes, and sends no messages."""

    def __init__(self) -> None:
        self.credentials: queue.SimpleQueue[str] = queue.SimpleQueue()

    def service(self, handler_call_details: Any) -> Any:
        """Handles a call."""
        self.credentials.put(dict(handler_call_details.invocation_metadata)["authorization"])

        def listen(requests: Any, context: grpc.ServicerContext) -> Any:
            context.send_initial_metadata(())
            for request in requests:
                if request.WhichOneof("message") == "refresh_credential":
                    self.credentials.put(request.refresh_credential.authorization)
            yield from ()

        return grpc.stream_stream_rpc_method_handler(listen, request_deserializer=pb.HoldRequest.FromString)


async def test_a_changed_token_file_is_sent_to_the_broker(tmp_path: Path, interface: Interface) -> None:
    recorder = CredentialRecorder()
    server = grpc.server(ThreadPoolExecutor(2), handlers=[recorder])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    file = tmp_path / "token"
    file.write_text(f"{CANARY}\n")
    client = create_client(interface, f"http://127.0.0.1:{port}", bearer_token_file=file)
    await client.connect()
    assert recorder.credentials.get(timeout=10) == f"Bearer {CANARY}"
    pending = asyncio.create_task(client.acquire("a"))
    file.write_text(f"{CANARY}-2\n")
    assert await asyncio.to_thread(recorder.credentials.get, True, 10) == f"Bearer {CANARY}-2"
    await client.shutdown()
    with pytest.raises(leasehold.Closed):
        await pending
    server.stop(None).wait()


def test_the_token_is_sent_with_unary_calls(recorder: tuple[RejectingRecorder, str]) -> None:
    handler, url = recorder
    # Keeps the stream open, because its connection is closed when the stream ends.
    handler.may_reject.clear()
    completed: queue.SimpleQueue[grpc.Future[Any]] = queue.SimpleQueue()
    ended = threading.Event()
    listener = StreamListener(lambda _: None, lambda _, __, ___: ended.set(), lambda _, __: None, lambda _: ended.set())
    connection = StreamConnection(parse_endpoints(url, None, CredentialSource(CANARY)), 0, listener)
    connection.release(pb.ReleaseRequest(), completed.put)
    connection.get_lock(inspection.GetLockRequest(name="a"), completed.put)
    connection.set_lock_limit(pb.SetLockLimitRequest(limit=1), completed.put)
    assert {completed.get(timeout=10).done() for _ in range(3)} == {True}
    handler.may_reject.set()
    assert ended.wait(10)
    methods = (
        "LockService/Hold",
        "LockService/Release",
        "InspectionService/GetLock",
        "LockService/SetLockLimit",
    )
    assert set(handler.calls) == {(f"/leasehold.v1.{method}", f"Bearer {CANARY}") for method in methods}


@pytest.mark.parametrize("wrong", ["", " , ", "127.0.0.1:7070", "ftp://broker:7070", "http://", "http://a:b"])
def test_endpoints_are_checked(wrong: str) -> None:
    with pytest.raises((leasehold.InvalidEndpoint, leasehold.NoEndpoint), match=r"http://127\.0\.0\.1:7070"):
        leasehold.Client(wrong)


@pytest.mark.parametrize("by", ["token", "file"])
def test_a_token_is_sent_unencrypted_to_other_machines_only_if_allowed(by: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{CANARY}\n")
    source = CredentialSource(CANARY) if by == "token" else CredentialSource(file=file)
    for url in (
        "http://127.0.0.1:1",
        "http://127.9.8.7",
        "http://[::1]:1",
        "http://localhost",
        "http://LocalHost:1",
        "https://10.1.2.3",
        "https://locks.example.com",
    ):
        assert len(parse_endpoints(url, None, source).all) == 1
    for url in (
        "http://10.1.2.3:1",
        "http://0.0.0.0",
        "http://[2001:db8::1]:1",
        "http://locks.example.com",
        "http://localhost.example.com",
        "http://127.0.0.1.example.com",
    ):
        with pytest.raises(leasehold.InsecureToken) as caught:
            parse_endpoints(["http://127.0.0.1:1", url], None, source)
        assert caught.value.endpoint == url
        assert CANARY not in str(caught.value)
        assert len(parse_endpoints(url, None, source, allow_insecure_token=True).all) == 1
        assert len(parse_endpoints(url, None, CredentialSource()).all) == 1
    with pytest.raises(leasehold.InsecureToken):
        leasehold.Client("http://10.1.2.3:1", bearer_token=CANARY)
    leasehold.Client("http://10.1.2.3:1", bearer_token=CANARY, allow_insecure_token=True).shutdown()


def test_settings_are_checked() -> None:
    with pytest.raises(leasehold.InvalidCredential) as caught:
        leasehold.Client("http://a:7070", bearer_token=f"{CANARY}\n")
    assert CANARY not in str(caught.value)
    for owner in ("", "x" * 257):
        with pytest.raises(leasehold.InvalidOwner):
            leasehold.Client("http://a:7070", owner=owner)
    addresses = [
        endpoint.address
        for endpoint in parse_endpoints(["http://a", "https://[::1]:7", "http://b:70"], None, CredentialSource()).all
    ]
    assert addresses == ["a:80", "[::1]:7", "b:70"]
