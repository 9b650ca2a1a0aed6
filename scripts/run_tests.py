#!/usr/bin/env python3
"""Builds everything and runs the tests of all languages, side by side as far as their needs allow.

A Rust test runs in a process of its own and is called PROGRAM::PATH. The first part of PATH says what it needs (NEEDS).
The tests of the clients and of the chart (PARTS) run beside the Rust tests. A failure does not stop the others: the end
lists each one with the command that repeats it alone, and the last line is `N passed, N failed`.
"""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMES = ROOT / "target/test-times.json"  # what each test took in the last run
SCALE = float(os.environ.get("LEASEHOLD_TEST_SCALE", "0.1"))
# What a test takes of the places for tests that wait, and of those for tests that work: there are 5 of each.
NEEDS, PLACES = {"waits": (1, 0), "light": (0, 1), "part": (0, 2), "loads": (0, 2), "alone": (5, 5)}, (5, 5)
TEST_LIMIT, PART_LIMIT, RUN_LIMIT = 60 + 1200 * SCALE, 300 + 3000 * SCALE, 3300 + 3000 * SCALE  # seconds
CLIENTS = ["go", "java", "typescript"]
PARTS = {"chart": "deploy/helm/test.sh", "documentation": "cargo test --doc"}
PARTS |= {name: f"client-sdk/{name}/test.sh" for name in ["python", *CLIENTS]}
CLOSING = re.compile(r"^(?:test result: .*?)?(\d+) passed[,;] (\d+) failed", re.MULTILINE)


@dataclass
class Job:
    """A process whose exit code, or for a part whose closing line, says what passed and failed."""

    name: str
    command: list[str]
    need: str
    repeat: str
    limit: float = TEST_LIMIT

    def start(self) -> None:
        """Starts the process in a process group of its own."""
        self.began, self.output = time.monotonic(), tempfile.TemporaryFile("w+", errors="replace")
        pipes = {"stdin": subprocess.DEVNULL, "stdout": self.output, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(self.command, cwd=ROOT, start_new_session=True, **pipes)


class Run:
    """The results of a run."""

    def __init__(self):
        self.passed, self.failures, self.ended, self.began = 0, [], [], time.monotonic()

    def fail(self, name: str, why: str, repeat: str) -> None:
        """Notes a failure and the command that repeats it."""
        self.failures.append(f"FAILED {name}: {why}\n  again: {repeat}")
        print(f"FAILED {name}: {why}", flush=True)

    def end(self, job: Job, code: int, cpu: float) -> None:
        """Judges a job that has ended, and prints its output if it has failed."""
        job.output.seek(0)
        seconds, text = time.monotonic() - job.began, job.output.read()
        job.output.close()
        why = "" if code == 0 else f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
        why = f"not done after {job.limit:.0f} s" if seconds > job.limit else why
        counts = CLOSING.findall(text) if job.need == "part" else [] if why else [(1, 0)]
        failed = max(sum(int(count) for _, count in counts), 1 if why else 0)
        self.passed += sum(int(count) for count, _ in counts)
        names = re.findall(r"^FAILED (\S.*)$", text, re.MULTILINE)[-failed:] if job.need == "part" and failed else []
        for name in names + [""] * (failed - len(names)):
            self.fail(f"{job.name} {name}".strip(), why, f"{job.repeat} {shlex.quote(name) if name else ''}".strip())
        shown = [line for line in text.splitlines() if failed or line.startswith(("FIGURES ", "WARNING "))]
        print("".join(line + "\n" for line in shown), end="", flush=True)
        self.ended.append({"name": job.name, "ok": not failed, "seconds": round(seconds, 2), "cpu": round(cpu, 2)})

    def build(self, command: list[str]) -> str:
        """Runs a command that builds, and returns its output. If it fails, that is a failure among the others."""
        built = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        if built.returncode:
            self.fail(shlex.join(command), f"exit code {built.returncode}", shlex.join(command))
        return built.stdout

    def close(self, results: Path | None) -> int:
        """Prints the slowest tests, all failures and the closing line."""
        print(f"\nThe slowest of {time.monotonic() - self.began:.0f} s, with their CPU time:")
        for test in sorted(self.ended, key=lambda test: -test["seconds"])[:10]:
            print(f"  {test['seconds']:6.1f} s {test['cpu']:6.1f} s  {test['name']}")
        print("\n" + "\n\n".join(self.failures))
        if results:
            results.write_text("".join(json.dumps(line) + "\n" for line in [*self.ended, {"done": True}]))
        print(f"\n{self.passed} passed, {len(self.failures)} failed", flush=True)
        return 1 if self.failures else 0


def rust_tests(run: Run, profile: list[str]) -> list[Job]:
    """Builds the test programs and lists their tests."""
    cargo = ["cargo", "test", "--no-run", "--no-fail-fast", *profile]
    jobs = []
    for message in map(json.loads, run.build([*cargo, "--message-format=json-render-diagnostics"]).splitlines()):
        if message["reason"] != "compiler-artifact" or not message["executable"] or not message["profile"]["test"]:
            continue
        folder, target = Path(message["manifest_path"]).parent, message["target"]
        program = target["name"] if target["kind"] == ["test"] else f"{folder.name}/{target['kind'][0]}"
        listed = subprocess.run([message["executable"], "--list", "--format=terse"], stdout=subprocess.PIPE, text=True)
        for path in [line.removesuffix(": test") for line in listed.stdout.splitlines() if line.endswith(": test")]:
            name, first = f"{program}::{path}", path.split("::")[0]
            command = ["env", "-C", str(folder), message["executable"], "--exact", path, "--nocapture"]
            again = shlex.join(["scripts/run_tests.py", *profile, "--exact", name])
            jobs.append(Job(name, command, first if first in NEEDS else "light", again))
    return jobs


def run_jobs(run: Run, jobs: list[Job], until: float) -> None:
    """Runs the jobs, as many side by side as fit; the longest first, and those that run alone at the end."""
    known = json.loads(TIMES.read_text()) if TIMES.is_file() else {}
    jobs = sorted(jobs, key=lambda job: (job.need == "alone", job.need != "part", -known.get(job.name, 0)))
    running, total, told = [], len(jobs), time.monotonic()
    try:
        while jobs or running:
            taken = [sum(NEEDS[job.need][kind] for job in running) for kind in (0, 1)]
            fit = [need for need, size in NEEDS.items() if all(map(int.__le__, map(sum, zip(taken, size)), PLACES))]
            if fitting := next((job for job in jobs if job.need in fit), None) if fit else None:
                jobs.remove(fitting)
                running.append(fitting)
                fitting.start()
                continue
            time.sleep(0.005)
            now = time.monotonic()
            for job in list(running):
                pid, status, usage = os.wait4(job.process.pid, os.WNOHANG)
                if pid:
                    running.remove(job)
                    job.process.returncode = os.waitstatus_to_exitcode(status)
                    run.end(job, job.process.returncode, usage.ru_utime + usage.ru_stime)
                elif now > min(until, job.began + job.limit):
                    os.killpg(job.process.pid, signal.SIGKILL)
            while now > until and jobs:
                job = jobs.pop()
                run.fail(job.name, "not begun: the time of the whole run is over", job.repeat)
            if now > told + 10:
                told, done = now, f"{total - len(jobs) - len(running)} of {total} done, {len(run.failures)} failed"
                print(f"[{done}]", *[job.name for job in running[:3]], flush=True)
    finally:
        for job in running:
            os.killpg(job.process.pid, signal.SIGKILL)
    TIMES.write_text(json.dumps(known | {test["name"]: test["seconds"] for test in run.ended}))


def share_stores(program: Path) -> subprocess.Popen:
    """Starts the stores that test processes share. They end when their input is closed, or with this process."""
    stores = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for line in iter(stores.stdout.readline, "ready\n"):
        name, separator, value = line.strip().partition("=")
        if not separator:
            sys.exit("The stores of the tests did not start: see above")
        os.environ[name] = value
    return stores


def main() -> int:
    """Builds and runs what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part, or something in the names of Rust tests")
    parser.add_argument("--exact", action="store_true", help="names are whole names of Rust tests")
    parser.add_argument("--rust", action="store_true", help="leave the parts out")
    parser.add_argument("--release", action="store_true", help="build in the release profile")
    parser.add_argument("--side-by-side", action="store_true", help="leave out what needs the machine alone")
    parser.add_argument("--list", action="store_true", help="print the names of the Rust tests and what they need")
    parser.add_argument("--results", type=Path, help="write a JSON line for each test to this file")
    args = parser.parse_args()
    run, profile = Run(), ["--release"] if args.release else []
    built = ROOT / "target" / ("release" if args.release else "debug")
    os.environ["LEASEHOLD_SERVER"] = str(built / "leasehold-server")
    bins = ["cargo", "build", "--bins", "--examples", *profile]
    for command in [bins, ["scripts/ahead.sh", *profile], *([f"client-sdk/{client}/build.sh"] for client in CLIENTS)]:
        run.build(command)
    jobs = rust_tests(run, profile)
    if args.names:
        is_wanted = str.__eq__ if args.exact else str.__contains__
        jobs = [job for job in jobs if any(is_wanted(job.name, name) for name in args.names if name not in PARTS)]
    jobs = [job for job in jobs if not (args.side_by_side and job.need == "alone")]
    if args.list:
        print("\n".join(f"{job.need:6} {job.name}" for job in jobs))
        return 0
    parts = [name for name in PARTS if name in args.names or not (args.names or args.rust)]
    jobs += [Job(name, shlex.split(PARTS[name]), "part", PARTS[name], PART_LIMIT) for name in parts]
    if not jobs:
        sys.exit("No test has such a name; list them with: scripts/run_tests.py --list")
    stores = share_stores(built / "shared_stores") if len(jobs) > 20 else None
    run_jobs(run, jobs, run.began + RUN_LIMIT)
    del stores
    return run.close(args.results)


if __name__ == "__main__":
    sys.exit(main())
