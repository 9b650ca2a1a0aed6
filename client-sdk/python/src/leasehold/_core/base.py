"""Base class of the clients for threads and for asyncio."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Union

from leasehold._core.credential_source import CredentialSource
from leasehold._core.endpoint import TLS, parse_endpoints
from leasehold._core.options import AcquireTemplate, Backend, Options
from leasehold._core.runtime import ClientRuntime
from leasehold.errors import InvalidOwner
from leasehold.target import TargetLike

if TYPE_CHECKING:
    from typing_extensions import Self

EndpointUrls = Union[str, Sequence[str]]


class ClientBase:
    """Settings of a client, and the backend that keeps its leases."""

    def __init__(
        self,
        endpoints: EndpointUrls,
        *,
        owner: str | None = None,
        bearer_token: str | None = None,
        bearer_token_file: str | os.PathLike[str] | None = None,
        allow_insecure_token: bool = False,
        tls: TLS | None = None,
        release_at_exit: bool = True,
    ) -> None:
        """Checks the settings. Nothing is started before the first call or ``connect``, so a client may be created
        before a fork and used after it.

        endpoints: URLs, in a list or separated by commas, as in ``http://a:7070,http://b:7070``. The client uses one
        at a time, and moves to the next one if its broker fails.
        owner: the name of this process, which operators and other callers see as the owner of a held lock: 1 to 256
        bytes. Default: host name and process id.
        bearer_token: the token that is sent to the brokers. Printable ASCII only.
        bearer_token_file: a file that contains the token, in place of ``bearer_token``. The file is read every second,
        and a changed token is sent to the brokers, so that locks outlive the token with which they were acquired. White
        space around the token is ignored.
        allow_insecure_token: allows sending the token unencrypted to endpoints that are neither https nor on this
        machine (127.0.0.0/8, ``::1`` and ``localhost``). Use it only if the network itself is trusted. Without it these
        endpoints are rejected with ``InsecureToken``.
        tls: trusted root certificates of https endpoints, and an optional client certificate. Default: the system trust
        store.
        release_at_exit: releases all leases when the process ends, within 2 s.

        Raises a subclass of ConnectError if a setting is invalid.
        """
        credentials = CredentialSource(bearer_token, bearer_token_file)
        runtime = ClientRuntime(
            parse_endpoints(endpoints, tls, credentials, allow_insecure_token=allow_insecure_token), release_at_exit
        )
        self._initialize(runtime, owner)

    @classmethod
    def of(cls, backend: Backend, owner: str | None) -> Self:
        """Creates a client of ``backend``."""
        client = cls.__new__(cls)
        client._initialize(backend, owner)
        return client

    def _initialize(self, backend: Backend, owner: str | None) -> None:
        if owner is not None and not 1 <= len(owner.encode()) <= 256:
            raise InvalidOwner
        self._backend = backend
        self._owner = owner
        # Keeps the backend alive until the client and the last of its leases are dropped.
        self._backend_reference = backend.reference()

    @property
    def owner(self) -> str:
        """Name of this process, which operators and other callers see as the owner of a held lock."""
        return self._owner or f"{socket.gethostname()}:{os.getpid()}"

    def _template(self, targets: Sequence[TargetLike], options: Options) -> AcquireTemplate:
        return AcquireTemplate(self._backend, self.owner, targets, options)

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} owner={self.owner!r}>"
