"""Tests of run_tests.py with small programs in place of tests."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import run_tests
from run_tests import Job, Run


class RunTests(unittest.TestCase):
    """Tests of runs whose jobs pass, fail, hang and exclude each other."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        run_tests.TIMES = Path(self.folder.name) / "times"
        self.trail = Path(self.folder.name) / "trail"
        self.results = Path(self.folder.name) / "results"

    def job(self, name, script, need="light", **options):
        """Creates a job that runs a line of shell."""
        return Job(name, ["bash", "-c", script], need, f"again {name}", **options)

    def traced(self, name, need):
        """Creates a job that records its start and its end in the trail."""
        return self.job(name, f"echo +{name} >>{self.trail}; sleep 0.2; echo -{name} >>{self.trail}", need)

    def run_all(self, jobs, until=60.0):
        """Runs jobs, and returns the exit code and the lines of the output."""
        run = Run()
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            run_tests.run_jobs(run, jobs, time.monotonic() + until)
            code = run.close(self.results)
        return code, printed.getvalue().splitlines()

    def test_a_failure_stops_nothing_and_is_listed_with_its_command(self):
        jobs = [self.job("bad", "echo why; exit 3"), self.job("good", "true"), self.job("late", "true", "alone")]
        code, lines = self.run_all(jobs)
        self.assertEqual((code, lines[-1]), (1, "2 passed, 1 failed"))
        self.assertIn("why", lines)
        self.assertEqual(lines[-4:-2], ["FAILED bad: exit code 3", "  again: again bad"])
        results = [json.loads(line) for line in self.results.read_text().splitlines()]
        self.assertEqual(results[-1], {"done": True})
        self.assertEqual({line["name"]: line["ok"] for line in results[:-1]}, {"bad": False, "good": True, "late": True})

    def test_a_failure_is_listed_with_its_first_panic(self):
        script = "echo \"thread 'a' (7) panicked at a.rs:3:5:\nnot seven\"; echo log; exit 101"
        _, lines = self.run_all([self.job("bad", script)])
        self.assertEqual(lines[-5:-3], ["FAILED bad: exit code 101: a.rs:3:5:", "not seven"])

    def test_a_run_without_failures_passes_and_shows_figures_only(self):
        code, lines = self.run_all([self.job("good", "echo FIGURES 5; echo more")])
        self.assertEqual((code, lines[-1]), (0, "1 passed, 0 failed"))
        self.assertIn("FIGURES 5", lines)
        self.assertNotIn("more", lines)

    def test_results_and_programs_are_where_cargo_builds(self):
        show = [sys.executable, "-c", "import run_tests; print(run_tests.TARGET, run_tests.RESULTS.parent)"]
        scripts = Path(run_tests.__file__).parent
        for chosen, target in [({}, scripts.parent / "target"), ({"CARGO_TARGET_DIR": "/far/away"}, "/far/away")]:
            others = {name: value for name, value in os.environ.items() if name != "CARGO_TARGET_DIR"}
            shown = subprocess.run(show, cwd=scripts, env=others | chosen, capture_output=True, text=True, check=True)
            self.assertEqual(shown.stdout, f"{target} {target}\n")

    def test_parts_are_counted_by_their_closing_line(self):
        two = "printf '\\033[0mFAILED two\\n'"
        script = f"echo FAILED by the runner itself; echo FAILED one; {two}; echo '5 passed, 2 failed'; exit 1"
        code, lines = self.run_all([self.job("part", script, "part"), self.job("good", "true")])
        self.assertEqual((code, lines[-1]), (1, "6 passed, 2 failed"))
        self.assertEqual(
            [line for line in lines if "again:" in line], ["  again: again part one", "  again: again part two"]
        )

    def test_a_part_that_dies_without_a_count_is_a_failure(self):
        code, lines = self.run_all([self.job("part", "exit 1", "part")])
        self.assertEqual((code, lines[-1]), (1, "0 passed, 1 failed"))

    def test_what_hangs_is_ended_with_all_that_it_started(self):
        script = f"(sleep 2; echo alive >>{self.trail}) & wait"
        began = time.monotonic()
        code, lines = self.run_all([self.job("hangs", script, limit=0.3)])
        self.assertEqual((code, lines[-1]), (1, "0 passed, 1 failed"))
        self.assertIn("FAILED hangs: not done after 0 s", lines)
        self.assertLess(time.monotonic() - began, 2)
        time.sleep(2.2)
        self.assertFalse(self.trail.exists())

    def test_what_was_not_begun_when_the_time_is_over_is_a_failure(self):
        jobs = [self.job(f"hangs{number}", "sleep 60", "alone") for number in range(3)]
        code, lines = self.run_all(jobs, until=0.3)
        self.assertEqual((code, lines[-1]), (1, "0 passed, 3 failed"))

    def together(self, needs, pressure):
        """Runs a job for each need, and returns the needs of the running jobs after each start and each end."""
        before, run_tests.PRESSURE = run_tests.PRESSURE, pressure
        try:
            self.run_all([self.traced(f"{need}{number}", need) for number, need in enumerate(needs)])
        finally:
            run_tests.PRESSURE = before
        running, together = set(), []
        for line in self.trail.read_text().split():
            running = running | {line[1:]} if line[0] == "+" else running - {line[1:]}
            self.assertLessEqual(sum(run_tests.NEEDS[name[:-1]][0] for name in running), run_tests.PLACES)
            together.append(sorted(name[:-1] for name in running))
        self.assertEqual(len(together), 2 * len(needs))
        return together

    def test_alone_is_alone_and_the_others_share_the_machine(self):
        needs = ["alone", "alone", "loads", "loads", "loads", "loads", "part", "part", "light", "waits"]
        together = self.together(needs, 1000)
        self.assertIn(["light", "loads", "loads", "part"], together)
        self.assertEqual(together[-4:], [["alone"], [], ["alone"], []])

    def test_nothing_starts_beside_others_while_the_processors_are_busy(self):
        together = self.together(["loads", "light", "waits"], -1000)
        self.assertEqual(max(map(len, together)), 1)


if __name__ == "__main__":
    unittest.main()
