#!/usr/bin/env python3
"""Counts the tests of a run from the reports of its test runner, for every test.sh.

    count_tests.py STATUS FOLDER

FOLDER has JUnit's XML (*.xml) and what `go test -json` writes (*.json); STATUS is the exit status of the run. Prints a
line `FAILED <name>` for each failed test, then `N passed, N failed`, and exits 1 if any failed. A run that failed
without a failed test, or without any test, counts as one failure. The names are those that test.sh accepts.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

FAILURES = ("failure", "error")


def junit_name(case: ElementTree.Element) -> str:
    """Returns the name by which pytest, Maven or Node runs this test alone."""
    name, class_name, file = (case.get(key, "") for key in ("name", "classname", "file"))
    if file.endswith(".py"):
        module = file[: -len(".py")].replace("/", ".")
        classes = class_name[len(module) + 1 :].split(".") if class_name.startswith(module + ".") else []
        return "::".join([file, *classes, name])
    if class_name in ("", "test"):  # Node gives every test the class "test".
        return name
    method = re.match(r"\w*", name).group()  # Without the arguments of a parameterized test.
    return f"{class_name}#{method}" if method else class_name


def read_junit(path: Path) -> list[tuple[str, bool]]:
    """Returns the names of the tests of a report, and true for those that passed. Omits skipped tests."""
    results: list[tuple[str, bool]] = []
    for case in ElementTree.parse(path).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        name = junit_name(case)
        passed = all(case.find(kind) is None for kind in FAILURES)
        # pytest reports a test a second time if its cleanup fails, too.
        if "::" in name and results and results[-1][0] == name:
            passed = results.pop()[1] and passed
        results.append((name, passed))
    return results


def read_go(path: Path) -> list[tuple[str, bool]]:
    """Returns names, and true for those that passed: of tests without subtests, of tests that failed outside their
    subtests, and of packages that did not build or ended early."""
    outcomes: dict[tuple[str, str], str] = {}
    for line in path.read_text().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # Output of a program that bypassed the test runner.
        if event.get("Action") in ("run", "pass", "fail", "skip") and "Package" in event:
            outcomes[event["Package"], event.get("Test", "")] = event["Action"]

    def parts(package: str, test: str) -> list[str]:
        prefix = test + "/" if test else ""
        return [
            outcome
            for (other, name), outcome in outcomes.items()
            if other == package and name != test and name.startswith(prefix)
        ]

    results = []
    for (package, test), outcome in outcomes.items():
        # A test that never ended was running when its package failed.
        failed = outcome in ("fail", "run")
        inner = parts(package, test)
        if failed and not any(part in ("fail", "run") for part in inner):
            results.append((test or package, False))
        elif outcome == "pass" and test and not inner:
            results.append((test, True))
    return results


def summarize(status: int, folder: Path) -> int:
    """Prints the failed tests and the counts, and returns the exit status."""
    results: list[tuple[str, bool]] = []
    for path in sorted(folder.rglob("*.xml")):
        try:
            results += read_junit(path)
        except ElementTree.ParseError as error:
            results.append((f"{path.name} (an incomplete report: {error})", False))
    for path in sorted(folder.rglob("*.json")):
        results += read_go(path)
    failed = [name for name, passed in results if not passed]
    passed = len(results) - len(failed)
    if not failed and (status or not passed):
        failed = [f"(the run itself, with exit status {status}: see above)"]
    for name in failed:
        print("FAILED", name)
    print(f"{passed} passed, {len(failed)} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(summarize(int(sys.argv[1]), Path(sys.argv[2])))
