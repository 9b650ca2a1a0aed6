"""The clock of lease validity, which also runs while the machine is suspended."""

from __future__ import annotations

import sys
import threading
import time


class SuspendAwareClock:
    """A clock for platforms on which no clock runs through a suspend.

    Each reading adds the larger step of the monotonic clock and the wall clock. The clock never goes back, and never
    runs slower than the monotonic clock, whatever the wall clock is set to. A wall clock that is set ahead ends
    validity early.
    """

    def __init__(self, monotonic: float, wall: float) -> None:
        self._lock = threading.RLock()
        self._monotonic = monotonic
        self._wall = wall
        self._elapsed = 0.0

    def advance(self, monotonic: float, wall: float) -> float:
        """Returns the time since the first reading, in seconds."""
        with self._lock:
            steps = (monotonic - self._monotonic, wall - self._wall, 0.0)
            self._monotonic, self._wall = monotonic, wall
            self._elapsed += max(steps)
            return self._elapsed


if sys.platform == "linux":

    def now() -> float:
        """Returns the seconds since an unspecified time in the past."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    _CLOCK = SuspendAwareClock(time.monotonic(), time.time())

    def now() -> float:
        """Returns the seconds since an unspecified time in the past."""
        return _CLOCK.advance(time.monotonic(), time.time())
