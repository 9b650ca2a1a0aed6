"""Tests of repeat.sh with a small program in place of the test runner."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

REPEAT = Path(__file__).resolve().parents[1] / "repeat.sh"

# Records each call. The file `plan` has a line for each call with its action; the last line applies to all later calls.
RUNNER = """#!/usr/bin/env python3
import json, sys, time
from pathlib import Path

calls = Path("calls")
with calls.open("a") as file:
    file.write(" ".join(sys.argv[3:]) + "\\n")
plan = Path("plan").read_text().splitlines()
todo = plan[min(len(calls.read_text().splitlines()), len(plan)) - 1]
if todo == "hang":
    time.sleep(60)
if todo == "stop":
    sys.exit(7)
with open(sys.argv[2], "a") as results:
    for name, ok in [("program::good", True), ("program::bad", todo != "fail")]:
        if sys.argv[3:] == ["--rust"] or name in sys.argv:
            results.write(json.dumps({"name": name, "ok": ok, "seconds": 1.5}) + "\\n")
    results.write(json.dumps({"done": True}) + "\\n")
print("the runner's closing line")
sys.exit(todo in ("fail", "no test"))
"""


class RepeatTests(unittest.TestCase):
    """Tests of the counts of repeat.sh, of interrupted calls, and of the processes that it starts."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "scripts").mkdir()
        shutil.copy(REPEAT, self.root / "scripts")
        runner = self.root / "scripts/run_tests.py"
        runner.write_text(RUNNER)
        runner.chmod(0o755)
        (self.root / ".gitignore").write_text("target\ncalls\nplan\n")
        self.git("init", "--quiet")
        self.commit()

    def git(self, *args):
        """Runs git with the identity of a test user."""
        who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        subprocess.run(["git", *who, *args], cwd=self.root, check=True)

    def commit(self):
        """Commits all changes, or creates an empty commit."""
        self.git("add", ".")
        self.git("commit", "--quiet", "--allow-empty", "--message", "some change")

    def start(self, *args, plan):
        """Starts repeat.sh in a new process group."""
        (self.root / "plan").write_text(plan)
        command = [self.root / "scripts/repeat.sh", *args]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen(command, start_new_session=True, **pipes)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.addCleanup(process.stdout.close)
        return process

    def repeat(self, *args, plan="pass"):
        """Runs repeat.sh, and returns its exit code and the words of each line of its output."""
        process = self.start(*args, plan=plan)
        printed, _ = process.communicate(timeout=60)
        return process.returncode, [line.split() for line in printed.splitlines()]

    def calls(self):
        """Returns the arguments of each call of the runner."""
        return (self.root / "calls").read_text().splitlines()

    def wait_for_calls(self, count):
        """Waits until the runner has been called `count` times."""
        until = time.monotonic() + 30
        while not (self.root / "calls").is_file() or len(self.calls()) < count:
            self.assertLess(time.monotonic(), until, "the runner is called")
            time.sleep(0.01)

    def test_one_test_is_repeated_and_counted(self):
        code, lines = self.repeat("program::bad", "4", plan="pass\nfail\npass")
        self.assertEqual(self.calls(), ["--exact program::bad"] * 4)
        self.assertEqual(code, 1)
        self.assertIn(["4", "3", "1", "1.5", "s", "program::bad"], lines)
        self.assertEqual(lines[-1][:3], ["program::bad", "failed", "in"])
        self.assertEqual([Path(path).name for path in lines[-1][3:]], ["run-2.log"])

    def test_of_all_only_those_that_failed_and_a_total_are_listed(self):
        code, lines = self.repeat("all", "2", plan="pass\nfail")
        self.assertEqual(self.calls(), ["--rust"] * 2)
        table = lines[lines.index(["runs", "passed", "failed", "slowest", "test"]) + 1 : -1]
        self.assertEqual(table, [["2", "1", "1", "1.5", "s", "program::bad"], ["4", "3", "1", "1.5", "s", "total"]])
        self.assertEqual(code, 1)

    def test_an_interrupted_call_goes_on_where_it_stopped(self):
        process = self.start("program::good", "3", plan="pass\nhang\npass")
        self.wait_for_calls(2)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        code, lines = self.repeat("program::good", "3", plan="pass")
        self.assertEqual((code, len(self.calls())), (0, 4))
        self.assertIn(["3", "3", "0", "1.5", "s", "program::good"], lines)
        self.repeat("program::good", "4")
        self.assertEqual(len(self.calls()), 5)

    def test_other_code_and_another_test_begin_anew(self):
        self.repeat("program::good", "1")
        self.repeat("program::bad", "1")
        self.commit()
        self.repeat("program::good", "1")
        (self.root / ".gitignore").write_text("target\ncalls\nplan\nmore\n")
        self.repeat("program::good", "1")
        self.assertEqual(len(self.calls()), 4)

    def test_a_runner_that_does_not_end_or_fails_without_a_test_is_an_error(self):
        code, lines = self.repeat("program::good", "2", plan="stop")
        self.assertEqual((code, lines[-1][:8]), (2, "run 1 did not end (exit code 7):".split()))
        code, lines = self.repeat("program::good", "2", plan="stop\nno test")
        self.assertEqual((code, lines[-1][:3]), (2, ["run", "1", "failed"]))
        self.assertEqual(self.repeat("program::good", "1")[0], 0)

    def test_busy_loops_run_beside_it_and_end_with_it(self):
        process = self.start("program::good", "1", "--busy", plan="hang")
        self.wait_for_calls(1)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        names = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in children}
        loops = [pid for pid, name in names.items() if name == "bash"]
        self.assertEqual(len(loops), 2, names)
        (runner,) = set(children) - set(loops)
        os.kill(int(runner), signal.SIGKILL)
        process.communicate(timeout=60)
        for pid in loops:
            self.assertFalse(Path(f"/proc/{pid}").exists(), "a busy loop is left")

    def test_the_runner_ends_with_it(self):
        process = self.start("program::good", "1", plan="hang")
        self.wait_for_calls(1)
        (runner,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.terminate()
        process.communicate(timeout=20)
        self.assertFalse(Path(f"/proc/{runner}").exists(), "the runner is left")

    def test_wrong_arguments_are_refused(self):
        for args in [(), ("all",), ("all", "0"), ("all", "x"), ("all", "1", "--other"), ("all", "1", "--busy", "x")]:
            code, lines = self.repeat(*args)
            self.assertEqual((code, lines[0][0]), (2, "usage:"), args)


if __name__ == "__main__":
    unittest.main()
