"""Tests of cpu_pressure.py with a file in place of that of the kernel."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from cpu_pressure import CpuPressure


class CpuPressureTests(unittest.TestCase):
    """Tests of the average under load, and without counts of the kernel."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file, self.now, self.waited = Path(folder.name) / "cpu", 50.0, 7.0

    def passes(self, pressure, seconds, share):
        """Advances the clock by `seconds`, in steps in which threads wait for this share of the time."""
        for _ in range(round(seconds / 0.02)):
            self.now, self.waited = self.now + 0.02, self.waited + 0.02 * share
            self.count()
            pressure.measure()

    def count(self):
        """Writes the file of the kernel with the current count."""
        line = f"some avg10=1.00 avg60=2.00 avg300=3.00 total={self.waited * 1e6:.0f}\n"
        self.file.write_text(line + line.replace("some", "full"))

    def test_it_follows_the_share_of_the_time_within_seconds(self):
        self.count()
        pressure = CpuPressure(self.file, lambda: self.now)
        self.assertEqual(pressure.average, 0)
        self.passes(pressure, 1, 0.8)
        self.assertAlmostEqual(pressure.average, 0.5, delta=0.02)
        self.passes(pressure, 5, 0.8)
        self.assertAlmostEqual(pressure.average, 0.8, delta=0.01)
        self.passes(pressure, 5, 0.1)
        self.assertAlmostEqual(pressure.average, 0.1, delta=0.01)

    def test_what_is_expected_counts_until_it_is_measured(self):
        self.count()
        pressure = CpuPressure(self.file, lambda: self.now)
        pressure.expect(0.4)
        self.assertAlmostEqual(pressure.average, 0.4)
        self.passes(pressure, 5, 0)
        self.assertLess(pressure.average, 0.01)

    def test_a_long_pause_between_two_measurements_counts_as_a_whole(self):
        self.count()
        pressure = CpuPressure(self.file, lambda: self.now)
        self.now, self.waited = self.now + 60, self.waited + 30
        self.count()
        pressure.measure()
        self.assertAlmostEqual(pressure.average, 0.5)

    def test_a_kernel_without_counts_never_shows_pressure(self):
        pressure = CpuPressure(self.file, lambda: self.now)
        self.now += 1
        pressure.measure()
        self.assertEqual(pressure.average, 0)


if __name__ == "__main__":
    unittest.main()
