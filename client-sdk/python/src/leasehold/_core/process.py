"""Detection of forks: clients and leases of the parent process must not be used in the child."""

from __future__ import annotations

import os

_generation = 0


def generation() -> int:
    """Returns the number of forks between the process that imported this module and this process."""
    return _generation


def _increment_generation() -> None:
    global _generation
    _generation += 1


# Reading the process id would cost a system call each time that a lease is checked.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_increment_generation)
