"""Where the credential comes from. It is in no log."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from leasehold.errors import InvalidCredential

#: How often a stream looks for another one, in seconds.
LOOK_EVERY = 1.0


@dataclass(frozen=True)
class Source:
    """Always the same token, or whatever is in a file now."""

    token: str | None = field(default=None, repr=False)
    file: str | os.PathLike[str] | None = None

    def now(self) -> str | None:
        """As it stands in the header; None: nothing is shown."""
        token = self.token
        if self.file is not None:
            try:
                token = Path(self.file).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeError) as error:
                # The text of a wrong file may be secret, too.
                why = error.strerror if isinstance(error, OSError) else "it is no text"
                raise InvalidCredential(f"cannot be read from {os.fspath(self.file)}: {why}") from None
        if token is None:
            return None
        if not (token.isascii() and token.isprintable()):
            raise InvalidCredential
        return f"Bearer {token}"
