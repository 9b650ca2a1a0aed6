"""Endpoints of the brokers, and the connections to them."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import grpc

from leasehold._core.credential_source import CredentialSource
from leasehold.errors import InsecureToken, InvalidEndpoint, NoEndpoint

#: Time limit for establishing a connection and opening a stream on it, in seconds.
OPEN_TIMEOUT = 2.0
# A dead connection must be detected before the broker removes a queue position, 6 s after the last heartbeat. The
# detection takes 4 s: 2 s without any message, and 2 s without a response to a ping.
_PING_INTERVAL_MS = 2_000
_CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", _PING_INTERVAL_MS),
    ("grpc.keepalive_timeout_ms", _PING_INTERVAL_MS),
    # Newer versions of gRPC wait a minute for the response unless this option is set, too.
    ("grpc.http2.ping_timeout_ms", _PING_INTERVAL_MS),
    ("grpc.http2.max_pings_without_data", 0),
    # Each stream has a separate connection, so that a new stream does not reuse a broken connection.
    ("grpc.use_local_subchannel_pool", 1),
    # The client decides which calls are repeated.
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.enable_http_proxy", 0),
)
_DEFAULT_PORTS = {"http": 80, "https": 443}
#: Loopback addresses, which only this machine can reach.
_LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


@dataclass(frozen=True)
class TLS:
    """Trusted root certificates of https endpoints, and an optional client certificate, all in PEM."""

    #: Root certificates that are trusted for brokers. None: those of the system trust store.
    ca: bytes | None = None
    #: This client's certificate and its key, for brokers that request one.
    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    #: The name in the brokers' certificates, if it differs from the host name of the endpoint.
    server_name: str | None = None


@dataclass(frozen=True)
class Endpoint:
    """An endpoint: one broker, or a host name of several."""

    name: str
    address: str
    is_tls: bool
    #: True if messages to the endpoint cross a network unencrypted.
    is_unencrypted: bool

    def create_channel(self, tls: TLS) -> grpc.Channel:
        """Creates a separate connection, which is established by its first call."""
        if not self.is_tls:
            return grpc.insecure_channel(self.address, options=_CHANNEL_OPTIONS)
        roots = tls.ca or _system_roots()
        credentials = grpc.ssl_channel_credentials(roots, tls.key, tls.cert)
        options: Sequence[tuple[str, str | int]] = _CHANNEL_OPTIONS
        if tls.server_name is not None:
            options = (*_CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", tls.server_name))
        return grpc.secure_channel(self.address, credentials, options=options)


@dataclass(frozen=True)
class Endpoints:
    """The endpoints, TLS settings and credentials that all streams of a client share."""

    all: list[Endpoint]
    tls: TLS
    #: Source of the credential that is presented with every call and every stream.
    credentials: CredentialSource = field(default_factory=CredentialSource)


def parse_endpoints(
    endpoints: str | Sequence[str],
    tls: TLS | None,
    credentials: CredentialSource,
    *,
    allow_insecure_token: bool = False,
) -> Endpoints:
    """Checks the connection settings of a client. ``endpoints`` is a list of URLs, or URLs separated by commas."""
    urls = endpoints.split(",") if isinstance(endpoints, str) else endpoints
    parsed = [_parse_endpoint(url.strip()) for url in urls if url.strip()]
    if not parsed:
        raise NoEndpoint
    if credentials.authorization() is not None and not allow_insecure_token:
        for endpoint in parsed:
            if endpoint.is_unencrypted:
                raise InsecureToken(endpoint.name)
    return Endpoints(parsed, tls or TLS(), credentials)


def _parse_endpoint(url: str) -> Endpoint:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidEndpoint(url, str(error)) from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise InvalidEndpoint(url, "is not an http or https URL")
    if not host:
        raise InvalidEndpoint(url, "has no host")
    is_tls = parts.scheme == "https"
    address = f"[{host}]" if ":" in host else host
    address = f"{address}:{port or _DEFAULT_PORTS[parts.scheme]}"
    return Endpoint(url, address, is_tls, not is_tls and not _is_loopback(host))


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return any(address in network for network in _LOOPBACK)


def _system_roots() -> bytes | None:
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    pem = "".join(ssl.DER_cert_to_PEM_cert(certificate) for certificate in certificates)
    # None selects the root certificates that are included in gRPC.
    return pem.encode() or None
