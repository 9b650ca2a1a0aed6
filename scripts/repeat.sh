#!/usr/bin/env bash
# Repeats one Rust test, or all of them, and prints the numbers of passed and failed runs and the duration of the
# slowest one. After an interruption, a repeated call on the same code continues, also with a larger number of runs.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly USAGE='usage: scripts/repeat.sh TEST|all TIMES [--busy]
TEST is a whole name as scripts/run_tests.py --list prints it. --busy keeps two cores busy meanwhile.'

fail() {
    echo "$*" >&2
    exit 2
}

[[ $# -ge 2 && "$2" =~ ^[1-9][0-9]*$ && $# -le 3 && "${3:---busy}" == --busy ]] || fail "$USAGE"
readonly TEST=$1 TIMES=$2 BUSY=${3:-}
[[ "$TEST" == all ]] && NAMES=(--rust ${BUSY:+--busy}) || NAMES=(--exact "$TEST")

# Results are valid for this code only, including uncommitted changes.
KEY=$({
    git rev-parse HEAD
    git diff HEAD
    echo "$TEST $BUSY ${LEASEHOLD_TEST_SCALE:-}"
} | sha256sum | cut -c -16)
readonly STATE=target/repeat/$KEY
mkdir -p "$STATE"

is_done() {
    [[ -f "$1" ]] && tail -n 1 "$1" | grep -qx '{"done": true}'
}

LOOPS=()
RUNNER=()
end_started() {
    if [[ ${#LOOPS[@]} != 0 || ${#RUNNER[@]} != 0 ]]; then
        kill "${LOOPS[@]}" "${RUNNER[@]}" || true
        wait "${LOOPS[@]}" "${RUNNER[@]}" || true
    fi
}
trap end_started EXIT
trap 'exit 130' INT TERM
if [[ "$BUSY" ]]; then
    for _ in 1 2; do
        # The loop ends with this script, even if the script is killed.
        (while kill -0 $$; do :; done) 2>/dev/null &
        LOOPS+=($!)
    done
fi

for ((run = 1; run <= TIMES; run++)); do
    results=$STATE/run-$run.jsonl
    if is_done "$results"; then
        continue
    fi
    rm -f "$results"
    code=0
    # The run is in the background, so that a signal to this script also ends the run. Bash lets background processes
    # ignore Ctrl-C, and the programs under test would inherit that, so the signal is restored.
    env --default-signal=INT scripts/run_tests.py --results "$results" "${NAMES[@]}" \
        >"$STATE/run-$run.log" 2>&1 </dev/null &
    RUNNER=($!)
    wait $! || code=$?
    RUNNER=()
    is_done "$results" || fail "run $run did not end (exit code $code): see $STATE/run-$run.log"
    if [[ "$code" != 0 ]] && ! grep -q '"ok": false' "$results"; then
        rm "$results"
        fail "run $run failed without a test that failed (exit code $code): see $STATE/run-$run.log"
    fi
    echo "run $run of $TIMES: $(tail -n 1 "$STATE/run-$run.log")"
done

python3 - "$STATE" "$TIMES" "$TEST" <<'END'
import json
import sys
from collections import defaultdict
from pathlib import Path

state, times, test = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
tests, failed_runs = defaultdict(list), defaultdict(list)
for run in range(1, times + 1):
    for line in map(json.loads, (state / f"run-{run}.jsonl").read_text().splitlines()):
        if "name" in line:
            tests[line["name"]].append(line)
            if not line["ok"]:
                failed_runs[line["name"]].append(run)
rows = [(name, lines) for name, lines in sorted(tests.items()) if test != "all" or name in failed_runs]
if test == "all":
    rows.append(("total", [line for lines in tests.values() for line in lines]))
print(f"\n{'runs':>6} {'passed':>6} {'failed':>6} {'slowest':>9}  test")
for name, lines in rows:
    passed, slowest = sum(line["ok"] for line in lines), max((line["seconds"] for line in lines), default=0)
    print(f"{len(lines):6} {passed:6} {len(lines) - passed:6} {slowest:7.1f} s  {name}")
for name, runs in sorted(failed_runs.items()):
    print(f"{name} failed in {', '.join(f'{state}/run-{run}.log' for run in runs)}")
sys.exit(1 if failed_runs else 0)
END
