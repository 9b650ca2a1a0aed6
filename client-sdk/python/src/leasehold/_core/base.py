"""What a client is made of, the same for both interfaces."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Union

from leasehold._core.core import Core
from leasehold._core.endpoint import TLS, brokers
from leasehold._core.options import Backend, Options, Plan
from leasehold._core.source import Source
from leasehold.errors import InvalidOwner
from leasehold.target import TargetLike

if TYPE_CHECKING:
    from typing_extensions import Self

Endpoints = Union[str, Sequence[str]]


class ClientBase:
    """Settings, and the way to whoever keeps the leases."""

    def __init__(
        self,
        endpoints: Endpoints,
        *,
        owner: str | None = None,
        bearer_token: str | None = None,
        bearer_token_file: str | os.PathLike[str] | None = None,
        allow_insecure_token: bool = False,
        tls: TLS | None = None,
        release_at_exit: bool = True,
    ) -> None:
        """Checks the settings. Nothing is begun before the first call or ``connect``, so a client may be made
        before a fork and used after it.

        endpoints: URLs, in a list or separated by commas, as in ``http://a:7070,http://b:7070``. One is used at
        a time; the others are for when it does not answer any more.
        owner: the name of this process, shown to people who find a lock held. Default: host name and process id.
        bearer_token: shown to the brokers.
        bearer_token_file: a file with the token instead, which is looked at every second: when it has another
        token, that is shown to the brokers, so that locks outlive the token that they were taken with.
        allow_insecure_token: let the token go unencrypted to endpoints that are not https and not of this machine
        (127.0.0.0/8, ``::1`` and ``localhost``), where the network itself is trusted. Else ``InsecureToken`` is
        raised for them.
        tls: how https endpoints are trusted. Default: the root certificates of the machine.
        release_at_exit: give everything back when the process ends, within 2 s.
        """
        source = Source(bearer_token, bearer_token_file)
        core = Core(brokers(endpoints, tls, source, allow_insecure_token=allow_insecure_token), release_at_exit)
        self._begin(core, owner)

    @classmethod
    def of(cls, backend: Backend, owner: str | None) -> Self:
        """A client of that backend."""
        client = cls.__new__(cls)
        client._begin(backend, owner)
        return client

    def _begin(self, backend: Backend, owner: str | None) -> None:
        if owner is not None and not 1 <= len(owner.encode()) <= 256:
            raise InvalidOwner
        self._backend = backend
        self._owner = owner
        # The backend ends with the client and the last of its leases.
        self._alive = backend.handle()

    @property
    def owner(self) -> str:
        """The name of this process, as people find it."""
        return self._owner or f"{socket.gethostname()}:{os.getpid()}"

    def _plan(self, targets: Sequence[TargetLike], options: Options) -> Plan:
        return Plan(self._backend, self.owner, targets, options)

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} owner={self.owner!r}>"
