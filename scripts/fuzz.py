#!/usr/bin/env python3
"""Runs the fuzz targets of fuzz/targets, two at a time, with libFuzzer.

Each starts from its corpus in fuzz/corpus and runs for 10 s, with coverage counters in the crates of the workspace, so
that dependencies are those of the test build. The last line is `N passed, N failed`.

With --soak each runs for an hour of CPU time, built by cargo-fuzz with counters in dependencies, too. What it finds is
kept in target/fuzz, and a call that was interrupted goes on where it stopped if the code is the same.
--minimize adds those inputs that reach new code to fuzz/corpus.
"""

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
TARGETS = sorted(path.stem for path in (ROOT / "fuzz/targets").glob("*.rs"))
SEEDS, WORK = ROOT / "fuzz/corpus", TARGET / "fuzz"
FOUND, ARTIFACTS, PROGRESS = WORK / "corpus", WORK / "artifacts", WORK / "progress.json"
RUNNING: set[subprocess.Popen] = set()
AT_ONCE, GATE_SECONDS, SOAK_CPU_SECONDS, SLICE_SECONDS = 2, 10, 3600, 300
CODE = ["server", "proto", "fuzz/Cargo.toml", "fuzz/targets", "Cargo.toml", "Cargo.lock", "rust-toolchain.toml"]
INPUT_SECONDS, INPUT_MB, CORPUS_MB = 25, 1024, 2
# Packages of the test build: with all of them selected, dependencies have the same features, and are not built again.
PACKAGES = ["leasehold-fuzz", "leasehold-cli", "leasehold", "leasehold-proto", "leasehold-server", "leasehold-tests"]


@dataclass
class Outcome:
    """The result of one run of a target."""
    failure: str
    inputs: int
    cpu_seconds: float


def output_of(*command: str) -> str:
    """Returns the output of a command."""
    return subprocess.check_output(command, cwd=ROOT, text=True)


def build(is_soak: bool, names: list[str]) -> Path:
    """Builds the targets, and returns the folder of their programs."""
    if is_soak:
        subprocess.run(["scripts/setup.sh", "fuzz"], cwd=ROOT, check=True)
        path = f"{output_of('scripts/setup.sh', 'cargo-fuzz').strip()}:{os.environ['PATH']}"
        host = re.search(r"^host: (.*)$", output_of("rustc", "-vV"), re.MULTILINE)[1]
        built, environment = WORK / "build", os.environ | {"PATH": path}
        command = ["cargo", "fuzz", "build", "--sanitizer", "none", "--target", host, "--target-dir", str(built)]
        subprocess.run(command, cwd=ROOT, check=True, env=environment)
        return built / host / "release"
    selected = [option for package in PACKAGES for option in ("--package", package)]
    selected += [option for name in names for option in ("--bin", name)]
    environment = os.environ | {"RUSTC_WORKSPACE_WRAPPER": str(ROOT / "fuzz/rustc.sh")}
    subprocess.run(["cargo", "build", "--locked", *selected], cwd=ROOT, check=True, env=environment)
    return TARGET / "debug"


def fuzz(program: Path, corpora: list[Path], seconds: int) -> Outcome:
    """Runs a target for the given seconds, or until an input makes it fail. New inputs go into the first corpus."""
    artifacts = ARTIFACTS / program.name
    for folder in [artifacts, *corpora]:
        folder.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={seconds}", f"-timeout={INPUT_SECONDS}", f"-rss_limit_mb={INPUT_MB}"]
    options += ["-max_len=4096", "-print_final_stats=1", f"-artifact_prefix={artifacts}/"]
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        # Runs with low priority, so that concurrent tests are preferred.
        process = subprocess.Popen(["nice", program, *options, *corpora], cwd=WORK, stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=subprocess.STDOUT)
        RUNNING.add(process)
        _, status, usage = os.wait4(process.pid, 0)
        RUNNING.discard(process)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    inputs = re.search(r"^stat::number_of_executed_units: *(\d+)", text, re.MULTILINE)
    failure = ""
    if process.returncode != 0:
        failure = explain(program, text) or f"exit code {process.returncode}: {text[-500:]}"
    return Outcome(failure, int(inputs[1]) if inputs else 0, usage.ru_utime + usage.ru_stime)


def explain(program: Path, text: str) -> str:
    """Returns the panic or the error of libFuzzer, with the input and the command that repeats the run."""
    why = re.search(r"panicked at (.*\n.*)", text) or re.search(r"ERROR: libFuzzer: (.*)", text)
    found = re.search(r"Test unit written to (\S+)(?:\nBase64: (\S+))?", text)
    if not (why and found):
        return ""
    return f"{why[1]}\n  input (Base64): {found[2]}\n  again: {program} {found[1]}"


def code_key() -> str:
    """Returns a digest of the sources of the targets, including uncommitted changes."""
    code = output_of("git", "ls-tree", "HEAD", *CODE) + output_of("git", "diff", "HEAD", "--", *CODE)
    return hashlib.sha256(code.encode()).hexdigest()[:16]


class Soak:
    """The CPU seconds that each target has run for, kept in a file."""
    def __init__(self):
        self.key, self.lock = code_key(), threading.Lock()
        known = json.loads(PROGRESS.read_text()) if PROGRESS.is_file() else {}
        self.seconds = known.get(self.key, {})

    def add(self, name: str, outcome: Outcome) -> None:
        """Records the CPU time of a run, and prints the progress of its target."""
        with self.lock:
            self.seconds[name] = self.seconds.get(name, 0) + outcome.cpu_seconds
            PROGRESS.write_text(json.dumps({self.key: self.seconds}))
            done, kept = self.seconds[name] / 60, len(list((FOUND / name).iterdir()))
            print(f"{name}: {done:.0f} of {SOAK_CPU_SECONDS / 60:.0f} min, {outcome.inputs} runs, kept {kept}", flush=True)

    def run(self, program: Path) -> str:
        """Runs a target until it has used an hour of CPU time or failed. Returns the failure, or an empty string."""
        name = program.name
        while self.seconds.get(name, 0) < SOAK_CPU_SECONDS:
            outcome = fuzz(program, [FOUND / name, SEEDS / name], SLICE_SECONDS)
            if outcome.failure:
                return outcome.failure
            self.add(name, outcome)
        return ""


def run_once(program: Path, seconds: int) -> str:
    """Runs a target without keeping new inputs. Returns the failure, or an empty string."""
    with tempfile.TemporaryDirectory() as found:
        outcome = fuzz(program, [Path(found), SEEDS / program.name], seconds)
    print(f"{program.name}: {outcome.inputs} runs", flush=True)
    return outcome.failure or ("" if outcome.inputs else "no input was run")


def minimize(program: Path) -> None:
    """Adds those found inputs that reach new code to the corpus in fuzz/corpus."""
    corpora = [SEEDS / program.name, FOUND / program.name]
    for folder in corpora:
        folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([program, "-set_cover_merge=1", "-use_counters=0", *corpora], check=True, stderr=subprocess.DEVNULL)


def end(number: int, _frame: object) -> None:
    """Kills the running targets, and exits with the exit code of the signal."""
    for process in RUNNING:
        os.kill(process.pid, signal.SIGKILL)
    os._exit(128 + number)


def main() -> int:
    """Builds and runs the targets that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"one of {', '.join(TARGETS)} [default: all]")
    parser.add_argument("--seconds", type=int, default=GATE_SECONDS, help="how long each target runs [default: 10]")
    parser.add_argument("--soak", action="store_true", help="an hour of CPU time for each target")
    parser.add_argument("--minimize", action="store_true", help="run nothing; add found inputs to fuzz/corpus")
    args = parser.parse_args()
    if unknown := set(args.targets) - set(TARGETS):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    for number in [signal.SIGINT, signal.SIGTERM]:
        signal.signal(number, end)
    WORK.mkdir(parents=True, exist_ok=True)
    names = args.targets or TARGETS
    folder = build(args.soak, names)
    programs = [folder / name for name in names]
    if args.minimize:
        for program in programs:
            minimize(program)
        size = sum(path.stat().st_size for path in SEEDS.rglob("*") if path.is_file())
        print(f"fuzz/corpus has {size / 1e6:.2f} MB of {CORPUS_MB} MB")
        return int(size > CORPUS_MB * 1e6)
    run = Soak().run if args.soak else lambda program: run_once(program, args.seconds)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        failures = list(pool.map(run, programs))
    for name, failure in zip(names, failures):
        if failure:
            print(f"FAILED {name}\n{failure}", flush=True)
    failed = sum(bool(failure) for failure in failures)
    print(f"{len(names) - failed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
