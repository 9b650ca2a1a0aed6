#!/usr/bin/env python3
"""Builds everything and runs the tests of all languages, side by side as far as their needs allow.

Each Rust test runs in its own process. Its name is PROGRAM::PATH, and the first part of PATH declares what it needs (see
NEEDS). A failure does not stop the others. The end lists each failure with its panic and the command that repeats it.
"""

import argparse
import fcntl
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from cpu_pressure import CpuPressure

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
TIMES, RESULTS = TARGET / "test-times.json", TARGET / "test-results.jsonl"  # of all runs, and of the last run
SCALE = float(os.environ.get("LEASEHOLD_TEST_SCALE", "0.1"))
# For each need: the slots that a job occupies, its expected CPU pressure, and its seconds if they are not recorded.
NEEDS = {"waits": (1, 0.2, 10), "light": (1, 0.02, 1), "part": (9, 0.4, 60), "loads": (3, 0.4, 9), "alone": (16, 1, 9)}
PLACES, PRESSURE, BUSY_PLACES = 16, 0.75, 6  # jobs start below this pressure; beside busy loops, at any pressure
TEST_LIMIT, PART_LIMIT, RUN_LIMIT = 180 + 1800 * SCALE, 300 + 3000 * SCALE, 3300 + 3000 * SCALE  # seconds
PARTS = {"chart": "deploy/helm/test.sh", "documentation": "cargo test --doc", "fuzz": "scripts/fuzz.py"}
PARTS |= {client: f"client-sdk/{client}/test.sh" for client in ["python", "go", "java", "typescript"]}
CLOSING = re.compile(r"^(?:test result: .*?)?(\d+) passed[,;] (\d+) failed", re.MULTILINE)


@dataclass
class Job:
    """A process whose exit code reports success or failure. The closing line of a part reports the numbers of both."""
    name: str
    command: list[str]
    need: str
    repeat: str
    limit: float = TEST_LIMIT

    def start(self) -> None:
        """Starts the process in a new process group."""
        self.began, self.output = time.monotonic(), tempfile.TemporaryFile("w+", errors="replace")
        pipes = {"stdin": subprocess.DEVNULL, "stdout": self.output, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(self.command, cwd=ROOT, start_new_session=True, **pipes)


class Run:
    """The results of a run."""
    def __init__(self):
        self.passed, self.failures, self.ended, self.began = 0, [], [], time.monotonic()

    def fail(self, name: str, why: str, repeat: str) -> None:
        """Records a failure and the command that repeats it."""
        self.failures.append(f"FAILED {name}: {why}\n  again: {repeat}")
        print(f"FAILED {name}: {why}", flush=True)

    def end(self, job: Job, code: int, cpu: float) -> None:
        """Records the results of a job that has ended, and prints its output if it failed."""
        job.output.seek(0)
        seconds, text = time.monotonic() - job.began, re.sub(r"\x1b\[[0-9;]*m", "", job.output.read())  # no colours
        why = "" if code == 0 else f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
        why = f"not done after {job.limit:.0f} s" if seconds > job.limit else why
        why = ": ".join([why, *re.findall(r"panicked at (.*\n.{,500})", text)[:1]]) if why else ""
        counts = CLOSING.findall(text) if job.need == "part" else [] if why else [(1, 0)]
        failed = max(sum(int(count) for _, count in counts), 1 if why else 0)
        self.passed += sum(int(count) for count, _ in counts)
        names = re.findall(r"^FAILED (\S.*)$", text, re.MULTILINE)[-failed:] if job.need == "part" and failed else []
        for name in names + [""] * (failed - len(names)):
            self.fail(f"{job.name} {name}".strip(), why, f"{job.repeat} {shlex.quote(name) if name else ''}".strip())
        shown = [line for line in text.splitlines() if failed or line.startswith(("FIGURES ", "WARNING "))]
        print("".join(line + "\n" for line in shown), end="", flush=True)
        self.ended.append({"name": job.name, "ok": not failed, "seconds": round(seconds, 2), "cpu": round(cpu, 2)})

    def prepare(self, command: list[str]) -> str:
        """Runs a command of the preparation and returns its output. Records a failure if the command fails."""
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            self.fail(shlex.join(command), f"exit code {done.returncode}", shlex.join(command))
        return done.stdout

    def close(self, results: Path) -> int:
        """Prints the slowest tests, all failures and the closing line."""
        print(f"\nThe slowest of {time.monotonic() - self.began:.0f} s, with their CPU time:")
        for test in sorted(self.ended, key=lambda test: -test["seconds"])[:10]:
            print(f"  {test['seconds']:6.1f} s {test['cpu']:6.1f} s  {test['name']}")
        results.write_text("".join(json.dumps(line) + "\n" for line in [*self.ended, {"done": True}]))
        print("\n" + "\n\n".join([*self.failures, f"{self.passed} passed, {len(self.failures)} failed"]), flush=True)
        return 1 if self.failures else 0


def rust_tests(run: Run, profile: list[str]) -> list[Job]:
    """Builds the test programs and lists their tests."""
    jobs, cargo = [], ["cargo", "test", "--no-run", "--no-fail-fast", *profile]
    for message in map(json.loads, run.prepare([*cargo, "--message-format=json-render-diagnostics"]).splitlines()):
        if message["reason"] != "compiler-artifact" or not message["executable"] or not message["profile"]["test"]:
            continue
        folder, target = Path(message["manifest_path"]).parent, message["target"]
        program = target["name"] if target["kind"] == ["test"] else f"{folder.name}/{target['kind'][0]}"
        listed = run.prepare([message["executable"], "--list", "--format=terse"])
        for path in [line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test")]:
            name, first = f"{program}::{path}", path.split("::")[0]
            command = ["env", "-C", str(folder), message["executable"], "--exact", path, "--nocapture"]
            again = shlex.join(["scripts/run_tests.py", *profile, "--exact", name])
            jobs.append(Job(name, command, first if first in NEEDS else "light", again))
    return jobs


def run_jobs(run: Run, jobs: list[Job], until: float, is_busy: bool = False) -> None:
    """Runs the jobs concurrently within the limits of slots and CPU pressure.

    The longest jobs start first, and those that run alone last.
    """
    known = json.loads(TIMES.read_text()) if TIMES.is_file() else {}
    jobs = sorted(jobs, key=lambda job: (job.need == "alone", -known.get(job.name, NEEDS[job.need][2])))
    running, total, told, pressure = [], len(jobs), time.monotonic(), CpuPressure()
    try:
        while jobs or running:
            free = (BUSY_PLACES if is_busy else PLACES) - sum(NEEDS[job.need][0] for job in running)
            fitting = next((job for job in jobs if NEEDS[job.need][0] <= free), None)
            if fitting and (is_busy or not running or pressure.average < PRESSURE):
                running.append(jobs.pop(jobs.index(fitting)))
                fitting.start()
                pressure.expect(NEEDS[fitting.need][1])
            time.sleep(0.02)
            now = time.monotonic()
            pressure.measure()
            for job in list(running):
                pid, status, usage = os.wait4(job.process.pid, os.WNOHANG)
                if pid:
                    running.remove(job)
                    job.process.returncode = os.waitstatus_to_exitcode(status)
                    run.end(job, job.process.returncode, usage.ru_utime + usage.ru_stime)
                elif now > min(until, job.began + job.limit):
                    os.killpg(job.process.pid, signal.SIGKILL)
            while now > until and jobs:
                run.fail((late := jobs.pop()).name, "not begun: the time of the whole run is over", late.repeat)
            if now > told + 10:
                told, done = now, f"{total - len(jobs) - len(running)} of {total} done, {len(run.failures)} failed"
                print(f"[{done}, pressure {pressure.average:.0%}]", *[job.name for job in running[:3]], flush=True)
    finally:
        for job in running:
            os.killpg(job.process.pid, signal.SIGKILL)
    TIMES.write_text(json.dumps(known | {test["name"]: test["seconds"] for test in run.ended}))


def share_stores(program: Path) -> subprocess.Popen:
    """Starts the stores that test processes share. The stores end when their stdin is closed, or with this process."""
    stores = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for line in iter(stores.stdout.readline, "ready\n"):
        name, separator, value = line.strip().partition("=")
        os.environ[name] = value if separator else sys.exit("The stores of the tests did not start: see above")
    return stores


def main() -> int:
    """Builds everything and runs the tests that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part, or something in the names of Rust tests")
    options = {"exact": "names are whole names of Rust tests", "rust": "leave the parts out"}
    options |= {"release": "build in the release profile", "list": "print the names and needs of the Rust tests"}
    options |= {"busy": "two busy loops run meanwhile: leave out what needs the machine alone"}
    for option, effect in options.items():
        parser.add_argument(f"--{option}", action="store_true", help=effect)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where a JSON line for each test is written")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # running jobs are killed, too
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)  # for tests with many connections
    run, profile = Run(), ["--release"] if args.release else []
    built = TARGET / ("release" if args.release else "debug")
    os.environ["LEASEHOLD_SERVER"] = str(built / "leasehold-server")
    builds = [["cargo", "build", "--bins", "--examples", *profile], ["scripts/ahead.sh", *profile]]
    for command in [*builds, *([f"client-sdk/{client}/build.sh"] for client in ["go", "java", "typescript"])]:
        run.prepare(command)
    jobs = rust_tests(run, profile)
    is_named, names = str.__eq__ if args.exact else str.__contains__, [name for name in args.names if name not in PARTS]
    jobs = [job for job in jobs if not args.names or any(is_named(job.name, name) for name in names)]
    if args.list:
        print("\n".join(f"{job.need:6} {job.name}" for job in jobs))
        return 0
    parts = [name for name in PARTS if name in args.names or not (args.names or args.rust)]
    jobs += [Job(name, shlex.split(PARTS[name]), "part", PARTS[name], PART_LIMIT) for name in parts]
    if not jobs:
        sys.exit("No test has such a name; list them with: scripts/run_tests.py --list")
    _stores = share_stores(built / "shared_stores") if len(jobs) > 20 else None
    alone = [job for job in jobs if job.need == "alone"]
    phases = [([job for job in jobs if job not in alone], fcntl.LOCK_SH), ([] if args.busy else alone, fcntl.LOCK_EX)]
    with Path(tempfile.gettempdir(), f"leasehold-tests-{os.getuid()}.lock").open("w") as lock:
        for some, kind in [phase for phase in phases if phase[0]]:
            print(f"{len(some)} tests begin as soon as the tests of other checkouts allow", flush=True)
            fcntl.flock(lock, kind)
            run_jobs(run, some, run.began + RUN_LIMIT, args.busy)
    return run.close(args.results)


if __name__ == "__main__":
    sys.exit(main())
