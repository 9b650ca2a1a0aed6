"""Where clients connect, and what they show: TLS, certificates and the bearer token."""

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
from flavours import Flavour, client_of, takes
from processes import Broker

import leasehold
from leasehold import TLS
from leasehold._core.endpoint import brokers
from leasehold._core.link import Link, Listener
from leasehold._core.source import Source
from leasehold.v1 import inspection_service_pb2 as inspection
from leasehold.v1 import lock_service_pb2 as pb

#: The token. What logs it or shows it gives it away.
CANARY = "canary-5b1f0c8e"


class TlsRelay:
    """Speaks TLS before a broker that does not."""

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
                near = self._context.wrap_socket(plain, server_side=True)
            except ssl.SSLError:
                continue
            except OSError:
                return
            far = socket.create_connection((self._broker[0], int(self._broker[1])))
            self._open += [near, far]
            # A TLS connection of Python is not read and written at once by two threads without care; short
            # turns of both are enough here.
            threading.Thread(target=self._relay, args=(near, far), daemon=True).start()

    @staticmethod
    def _relay(near: ssl.SSLSocket, far: socket.socket) -> None:
        near.settimeout(0.01)
        far.settimeout(0.01)
        try:
            while True:
                for one, other in ((near, far), (far, near)):
                    try:
                        data = one.recv(65536)
                    except TimeoutError:
                        continue
                    except socket.timeout:
                        continue
                    if not data:
                        return
                    other.sendall(data)
        except OSError:
            pass
        finally:
            near.close()
            far.close()

    def kill(self) -> None:
        """Ends it."""
        self._listener.close()
        for one in self._open:
            one.close()


def server_context(authority: trustme.CA, *, wants_client: bool) -> ssl.SSLContext:
    """A server whose certificate this authority has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    context.set_alpn_protocols(["h2"])
    if wants_client:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def test_tls_with_a_certificate_of_each_side(
    start: Callable[..., Any], shared_broker: Broker, flavour: Flavour, name: str
) -> None:
    authority = trustme.CA()
    context = server_context(authority, wants_client=True)
    relay: TlsRelay = start(TlsRelay, shared_broker.addr, context)
    own = authority.issue_cert("worker-1")
    key, cert = own.private_key_pem.bytes(), own.cert_chain_pems[0].bytes()
    tls = TLS(ca=authority.cert_pem.bytes(), cert=cert, key=key)
    assert b"PRIVATE" in key and "PRIVATE" not in repr(tls)
    client = client_of(flavour, relay.url, tls=tls)
    await client.connect()
    await takes(client, name)
    await client.shutdown()


async def test_a_server_that_nobody_vouches_for_is_refused(
    start: Callable[..., Any], shared_broker: Broker, flavour: Flavour
) -> None:
    relay: TlsRelay = start(TlsRelay, shared_broker.addr, server_context(trustme.CA(), wants_client=False))
    for tls in (None, TLS(ca=trustme.CA().cert_pem.bytes())):
        client = client_of(flavour, relay.url, tls=tls)
        with pytest.raises(leasehold.Unreachable, match="client certificate"):
            await client.connect()
        await client.shutdown()


class Recorder(grpc.GenericRpcHandler):
    """A broker that notes what it is shown, and refuses; streams only when it is to go on."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str | None]] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def service(self, handler_call_details: Any) -> Any:
        """One call."""
        shown = dict(handler_call_details.invocation_metadata)
        self.seen.append((handler_call_details.method, shown.get("authorization")))

        def refuse(_: Any, context: grpc.ServicerContext) -> Any:
            if handler_call_details.method.endswith("/Hold"):
                self.go_on.wait(10)
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "not with this one")

        return grpc.stream_stream_rpc_method_handler(refuse)


@pytest.fixture
def recorder() -> Iterator[tuple[Recorder, str]]:
    """A recorder and where it listens."""
    one = Recorder()
    server = grpc.server(ThreadPoolExecutor(2), handlers=[one])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield one, f"http://127.0.0.1:{port}"
    server.stop(None).wait()


async def test_the_token_goes_with_every_stream_and_nowhere_else(
    recorder: tuple[Recorder, str], flavour: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    one, url = recorder
    client = client_of(flavour, url, bearer_token=CANARY)
    with pytest.raises(leasehold.CredentialRefused) as caught:
        await client.connect()
    with pytest.raises(leasehold.Unauthenticated):
        await takes(client, "a")
    await client.shutdown()
    assert one.seen and set(one.seen) == {("/leasehold.v1.LockService/Hold", f"Bearer {CANARY}")}
    said = [caplog.text, str(caught.value), repr(caught.value), repr(client.inner)]
    said.append(repr(brokers(url, None, Source(CANARY))))
    assert "not with this one" in caplog.text
    assert not any(CANARY in text for text in said)


class Listening(grpc.GenericRpcHandler):
    """A broker that notes the first credential and all that is said on streams, and answers nothing."""

    def __init__(self) -> None:
        self.shown: queue.SimpleQueue[str] = queue.SimpleQueue()

    def service(self, handler_call_details: Any) -> Any:
        """One call."""
        self.shown.put(dict(handler_call_details.invocation_metadata)["authorization"])

        def listen(requests: Any, context: grpc.ServicerContext) -> Any:
            context.send_initial_metadata(())
            for request in requests:
                if request.WhichOneof("message") == "refresh_credential":
                    self.shown.put(request.refresh_credential.authorization)
            yield from ()

        return grpc.stream_stream_rpc_method_handler(listen, request_deserializer=pb.HoldRequest.FromString)


async def test_another_token_of_the_file_is_shown_to_the_broker(tmp_path: Path, flavour: Flavour) -> None:
    one = Listening()
    server = grpc.server(ThreadPoolExecutor(2), handlers=[one])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    file = tmp_path / "token"
    file.write_text(f"{CANARY}\n")
    client = client_of(flavour, f"http://127.0.0.1:{port}", bearer_token_file=file)
    await client.connect()
    assert one.shown.get(timeout=10) == f"Bearer {CANARY}"
    waiting = asyncio.create_task(client.acquire("a"))
    file.write_text(f"{CANARY}-2\n")
    assert await asyncio.to_thread(one.shown.get, True, 10) == f"Bearer {CANARY}-2"
    await client.shutdown()
    with pytest.raises(leasehold.Closed):
        await waiting
    server.stop(None).wait()


def test_the_token_goes_with_calls_beside_the_stream(recorder: tuple[Recorder, str]) -> None:
    one, url = recorder
    # A stream that ends takes its connection along.
    one.go_on.clear()
    answered: queue.SimpleQueue[grpc.Future[Any]] = queue.SimpleQueue()
    ended = threading.Event()
    nobody = Listener(lambda _: None, lambda _, __, ___: ended.set(), lambda _, __: None, lambda _: ended.set())
    link = Link(brokers(url, None, Source(CANARY)), 0, nobody)
    link.release(pb.ReleaseRequest(), answered.put)
    link.look(inspection.GetLockRequest(name="a"), answered.put)
    assert {answered.get(timeout=10).done() for _ in range(2)} == {True}
    one.go_on.set()
    assert ended.wait(10)
    methods = ("LockService/Hold", "LockService/Release", "InspectionService/GetLock")
    assert set(one.seen) == {(f"/leasehold.v1.{method}", f"Bearer {CANARY}") for method in methods}


@pytest.mark.parametrize("wrong", ["", " , ", "127.0.0.1:7070", "ftp://broker:7070", "http://", "http://a:b"])
def test_endpoints_are_checked(wrong: str) -> None:
    with pytest.raises((leasehold.InvalidEndpoint, leasehold.NoEndpoint), match=r"http://127\.0\.0\.1:7070"):
        leasehold.Client(wrong)


@pytest.mark.parametrize("by", ["token", "file"])
def test_a_token_goes_unencrypted_to_other_machines_only_if_that_is_allowed(by: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{CANARY}\n")
    source = Source(CANARY) if by == "token" else Source(file=file)
    for url in (
        "http://127.0.0.1:1",
        "http://127.9.8.7",
        "http://[::1]:1",
        "http://localhost",
        "http://LocalHost:1",
        "https://10.1.2.3",
        "https://locks.example.com",
    ):
        assert len(brokers(url, None, source).endpoints) == 1
    for url in (
        "http://10.1.2.3:1",
        "http://0.0.0.0",
        "http://[2001:db8::1]:1",
        "http://locks.example.com",
        "http://localhost.example.com",
        "http://127.0.0.1.example.com",
    ):
        with pytest.raises(leasehold.InsecureToken) as caught:
            brokers(["http://127.0.0.1:1", url], None, source)
        assert caught.value.endpoint == url
        assert CANARY not in str(caught.value)
        assert len(brokers(url, None, source, allow_insecure_token=True).endpoints) == 1
        assert len(brokers(url, None, Source()).endpoints) == 1
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
        one.address for one in brokers(["http://a", "https://[::1]:7", "http://b:70"], None, Source()).endpoints
    ]
    assert addresses == ["a:80", "[::1]:7", "b:70"]
