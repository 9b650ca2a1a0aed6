"""Which process this is: what belongs to the parent must not be used after a fork."""

from __future__ import annotations

import os

_generation = 0


def generation() -> int:
    """Another number in each child of a fork."""
    return _generation


def _count() -> None:
    global _generation
    _generation += 1


# Asking for the process id costs a system call each time; a lease is asked before every step.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count)
