"""The source of the bearer token. The token is never logged."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from leasehold.errors import InvalidCredential

#: Interval at which a stream checks for a changed token, in seconds.
CHECK_INTERVAL = 1.0


@dataclass(frozen=True)
class CredentialSource:
    """A fixed token, or a file that contains the current token."""

    token: str | None = field(default=None, repr=False)
    file: str | os.PathLike[str] | None = None

    def authorization(self) -> str | None:
        """Returns the value of the ``authorization`` header, or None if there is no token."""
        token = self.token
        if self.file is not None:
            try:
                token = Path(self.file).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeError) as error:
                # The error omits the content of the file, which may be secret even if it is not a token.
                reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
                raise InvalidCredential(f"cannot be read from {os.fspath(self.file)}: {reason}") from None
        if token is None:
            return None
        if not (token.isascii() and token.isprintable()):
            raise InvalidCredential
        return f"Bearer {token}"
