"""CPU pressure as measured by the kernel (PSI: https://docs.kernel.org/accounting/psi.html)."""

import time
from pathlib import Path


class CpuPressure:
    """The share of time, 0 to 1, in which at least one thread waits for a processor, as a moving average over a second.

    On a kernel without these counts (`psi=0`), the average contains only the expected load.
    """

    def __init__(self, file: Path = Path("/proc/pressure/cpu"), clock=time.monotonic):
        self.file, self.clock, self.average = file, clock, 0.0
        self.last = self.read()

    def read(self) -> tuple[float, float]:
        """Returns the current time, and the seconds for which threads have waited since the start of the machine."""
        text = self.file.read_text() if self.file.is_file() else "some 0 0 0 total=0"
        return self.clock(), int(text.split()[4].removeprefix("total=")) / 1e6

    def measure(self) -> None:
        """Adds the share of the time since the last call to the average."""
        (now, waited), (before, waited_before) = self.read(), self.last
        weight = min(now - before, 1.0)
        share = (waited - waited_before) / (now - before) if now > before else 0.0
        self.average += (share - self.average) * weight
        self.last = now, waited

    def expect(self, share: float) -> None:
        """Adds the expected share of a job that has just started. The following measurements replace it."""
        self.average += share
