"""The caller's trace context, for the broker: each call carries its own, since one stream carries many."""

from __future__ import annotations

import importlib
from typing import Any


def _propagator() -> Any:
    try:
        return importlib.import_module("opentelemetry.propagate")
    except ImportError:
        return None


_PROPAGATE = _propagator()


def traceparent() -> str:
    """As in the W3C header of this name, by the program's global propagator; empty: none."""
    if _PROPAGATE is None:
        return ""
    headers: dict[str, str] = {}
    _PROPAGATE.inject(headers)
    return headers.get("traceparent", "")
