"""Tests of scripts/count_tests.py with reports as the test runners of the clients write them."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "count_tests.py"
BROKEN_RUN = "FAILED (the run itself, with exit status {}: see above)"


class CountTests(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def count(self, status: int) -> tuple[int, list[str]]:
        command = [sys.executable, SCRIPT, str(status), self.folder]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(ended.stderr, "")
        return ended.returncode, ended.stdout.splitlines()

    def junit(self, cases: str) -> None:
        (self.folder / "tests.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")

    def go(self, *events: tuple[str, str, str]) -> None:
        lines = [json.dumps({"Package": package, "Test": test, "Action": action}) for package, test, action in events]
        (self.folder / "tests.json").write_text("\n".join(["past the runner", *lines]))

    def test_pytest(self) -> None:
        self.junit(
            '<testcase classname="tests.test_a" name="test_x[1]" file="tests/test_a.py"/>'
            '<testcase classname="tests.test_a.TestB" name="test_y" file="tests/test_a.py"><failure/></testcase>'
            '<testcase classname="tests.test_a.TestB" name="test_y" file="tests/test_a.py"><error/></testcase>'
            '<testcase classname="tests.test_a" name="test_z" file="tests/test_a.py"><skipped/></testcase>'
        )
        self.assertEqual(self.count(1), (1, ["FAILED tests/test_a.py::TestB::test_y", "1 passed, 1 failed"]))

    def test_surefire(self) -> None:
        self.junit(
            '<testcase classname="a.KindsTest" name="takes(String)[1]"/>'
            '<testcase classname="a.KindsTest" name="takes(String)[2]"><failure/></testcase>'
            '<testcase classname="a.CallsTest" name=""><error/></testcase>'
        )
        failed = ["FAILED a.KindsTest#takes", "FAILED a.CallsTest"]
        self.assertEqual(self.count(1), (1, [*failed, "1 passed, 2 failed"]))

    def test_node(self) -> None:
        self.junit(
            '<testcase classname="test" name="waits (long)"/>'
            '<testcase classname="test" name="waits (long)"/>'
            '<testcase classname="test" name="ends"><failure/></testcase>'
        )
        self.assertEqual(self.count(1), (1, ["FAILED ends", "2 passed, 1 failed"]))

    def test_go(self) -> None:
        self.go(
            ("p", "", "start"),
            ("p", "TestA", "run"),
            ("p", "TestA/one", "run"),
            ("p", "TestA/one", "pass"),
            ("p", "TestA/two", "run"),
            ("p", "TestA/two", "fail"),
            ("p", "TestA", "fail"),
            ("p", "TestB", "run"),
            ("p", "TestB", "pass"),
            ("p", "", "fail"),
            ("not_built", "", "fail"),
            ("without_tests", "", "skip"),
            ("ended_early", "TestC", "run"),
            ("ended_early", "", "fail"),
        )
        failed = ["FAILED TestA/two", "FAILED not_built", "FAILED TestC"]
        self.assertEqual(self.count(1), (1, [*failed, "2 passed, 3 failed"]))

    def test_all_pass(self) -> None:
        self.go(("p", "TestB", "run"), ("p", "TestB", "pass"), ("p", "", "pass"))
        self.assertEqual(self.count(0), (0, ["1 passed, 0 failed"]))

    def test_a_run_without_reports(self) -> None:
        self.assertEqual(self.count(2), (1, [BROKEN_RUN.format(2), "0 passed, 1 failed"]))
        self.assertEqual(self.count(0), (1, [BROKEN_RUN.format(0), "0 passed, 1 failed"]))

    def test_a_run_that_fails_after_its_tests(self) -> None:
        self.junit('<testcase classname="test" name="a"/>')
        self.assertEqual(self.count(3), (1, [BROKEN_RUN.format(3), "1 passed, 1 failed"]))

    def test_a_report_that_was_cut_off(self) -> None:
        (self.folder / "tests.xml").write_text("<testsuites>")
        code, lines = self.count(1)
        self.assertEqual((code, lines[-1]), (1, "0 passed, 1 failed"))
        self.assertIn("tests.xml (an incomplete report", lines[0])


if __name__ == "__main__":
    unittest.main()
