"""How busy the processors are, as the kernel counts it (PSI: https://docs.kernel.org/accounting/psi.html)."""

import time
from pathlib import Path


class CpuPressure:
    """The part of the time, 0 to 1, in which at least one thread waits for a processor: a moving average over a second.

    Where the kernel does not count it (`psi=0`), only what is expected counts.
    """

    def __init__(self, file: Path = Path("/proc/pressure/cpu"), clock=time.monotonic):
        self.file, self.clock, self.average = file, clock, 0.0
        self.last = self.read()

    def read(self) -> tuple[float, float]:
        """The time now, and for how many seconds threads have waited since the start of the machine."""
        text = self.file.read_text() if self.file.is_file() else "some 0 0 0 total=0"
        return self.clock(), int(text.split()[4].removeprefix("total=")) / 1e6

    def measure(self) -> None:
        """Takes the time since the last call into the average."""
        (now, waited), (before, waited_before) = self.read(), self.last
        weight = min(now - before, 1.0)
        share = (waited - waited_before) / (now - before) if now > before else 0.0
        self.average += (share - self.average) * weight
        self.last = now, waited

    def expect(self, share: float) -> None:
        """Counts what a job that has just started is going to add, until it is measured."""
        self.average += share
