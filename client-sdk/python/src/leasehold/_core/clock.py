"""The clock that validity is counted on: it runs on while the machine is suspended."""

from __future__ import annotations

import sys
import threading
import time


class Larger:
    """Where no clock runs through a suspend: the larger step of the monotonic and the wall clock.

    It never goes back, and never slower than the monotonic clock, whatever the wall clock is set to;
    a wall clock that is set ahead ends validity early.
    """

    def __init__(self, monotonic: float, wall: float) -> None:
        self._lock = threading.RLock()
        self._monotonic = monotonic
        self._wall = wall
        self._total = 0.0

    def advance(self, monotonic: float, wall: float) -> float:
        """The time since the first reading."""
        with self._lock:
            steps = (monotonic - self._monotonic, wall - self._wall, 0.0)
            self._monotonic, self._wall = monotonic, wall
            self._total += max(steps)
            return self._total


if sys.platform == "linux":

    def now() -> float:
        """Seconds since some moment in the past."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    _LARGER = Larger(time.monotonic(), time.time())

    def now() -> float:
        """Seconds since some moment in the past."""
        return _LARGER.advance(time.monotonic(), time.time())
