"""Where the brokers are, and how to reach and convince them."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import grpc

from leasehold._core.source import Source
from leasehold.errors import InsecureToken, InvalidEndpoint, NoEndpoint

#: Establishing a connection, and opening a stream on it, in seconds.
OPEN_LIMIT = 2.0
# A dead connection must be known before a place in line is given up, 6 s after the last heartbeat: 2 s
# without any message, and 2 s without an answer to a ping.
_PING_MS = 2_000
_OPTIONS = (
    ("grpc.keepalive_time_ms", _PING_MS),
    ("grpc.keepalive_timeout_ms", _PING_MS),
    # Newer versions of gRPC wait a minute for the answer unless told here, too.
    ("grpc.http2.ping_timeout_ms", _PING_MS),
    ("grpc.http2.max_pings_without_data", 0),
    # Each stream has a connection of its own: a new one must not find the broken one again.
    ("grpc.use_local_subchannel_pool", 1),
    # What is repeated is decided here.
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.enable_http_proxy", 0),
)
_PORTS = {"http": 80, "https": 443}
#: The addresses of this machine alone.
_LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


@dataclass(frozen=True)
class TLS:
    """How https endpoints are trusted, and a certificate of this client's own, all in PEM."""

    #: Who signed the brokers' certificates. Unset: the root certificates of the machine.
    ca: bytes | None = None
    #: This client's certificate and its key, where brokers ask for one.
    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    #: The name in the brokers' certificates, if it is not the endpoint's.
    server_name: str | None = None


@dataclass(frozen=True)
class Endpoint:
    """One broker, or a name behind which there are several."""

    name: str
    address: str
    is_tls: bool
    #: What is sent there crosses a network unencrypted.
    is_exposed: bool

    def channel(self, tls: TLS) -> grpc.Channel:
        """A connection of its own, which begins with its first call."""
        if not self.is_tls:
            return grpc.insecure_channel(self.address, options=_OPTIONS)
        roots = tls.ca or _machine_roots()
        credentials = grpc.ssl_channel_credentials(roots, tls.key, tls.cert)
        options: Sequence[tuple[str, str | int]] = _OPTIONS
        if tls.server_name is not None:
            options = (*_OPTIONS, ("grpc.ssl_target_name_override", tls.server_name))
        return grpc.secure_channel(self.address, credentials, options=options)


@dataclass(frozen=True)
class Brokers:
    """What all streams of a client share."""

    endpoints: list[Endpoint]
    tls: TLS
    #: Of what is shown with every call and every stream.
    source: Source = field(default_factory=Source)


def brokers(
    endpoints: str | Sequence[str], tls: TLS | None, source: Source, *, allow_insecure_token: bool = False
) -> Brokers:
    """Checks what a client is made of. URLs are separated by commas, or stand in a list."""
    urls = endpoints.split(",") if isinstance(endpoints, str) else endpoints
    parsed = [_endpoint(url.strip()) for url in urls if url.strip()]
    if not parsed:
        raise NoEndpoint
    if source.now() is not None and not allow_insecure_token:
        for one in parsed:
            if one.is_exposed:
                raise InsecureToken(one.name)
    return Brokers(parsed, tls or TLS(), source)


def _endpoint(url: str) -> Endpoint:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidEndpoint(url, str(error)) from None
    if parts.scheme not in _PORTS:
        raise InvalidEndpoint(url, "is no http or https URL")
    if not host:
        raise InvalidEndpoint(url, "has no host")
    is_tls = parts.scheme == "https"
    address = f"[{host}]" if ":" in host else host
    address = f"{address}:{port or _PORTS[parts.scheme]}"
    return Endpoint(url, address, is_tls, not is_tls and not _is_loopback(host))


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return any(address in network for network in _LOOPBACK)


def _machine_roots() -> bytes | None:
    found = ssl.create_default_context().get_ca_certs(binary_form=True)
    pem = "".join(ssl.DER_cert_to_PEM_cert(one) for one in found)
    # Without any, the ones that come with gRPC.
    return pem.encode() or None
