#!/usr/bin/env bash
# Runs the tests of the workspace, two files side by side: most of them wait most of the time. The arguments go to
# cargo. Those that measure what others would disturb come last, one by one.
set -euo pipefail
cd "$(dirname "$0")/.."

# By their names: what compares times or memory with a bound that leaves no room for a neighbour.
readonly ALONE='^(abuse_.*|chart_upgrade|cluster|cluster_eras|cluster_messages|connections|cost|differential|hold_connection|hold_crash|hold_crowd|page_load|redis_errors_end|redlock_listing|refusals|sdk_cancelled|sdk_pause|sdk_suspend|several)$'

cargo test --workspace --no-run "$@"
LIST=$(cargo test --workspace --no-run --message-format json "$@" 2>/dev/null | python3 -c '
import json, os, sys
for line in sys.stdin:
    told = json.loads(line)
    if told["reason"] == "compiler-artifact" and told["executable"] and told["profile"]["test"]:
        print(told["target"]["name"], os.path.dirname(told["manifest_path"]), told["executable"])
')
readonly LIST
[[ -n "$LIST" ]]
# At a tenth, the longest file (`suite_java`) takes less than two minutes on two cores.
LIMIT_S=$(awk -v scale="${LEASEHOLD_TEST_SCALE:-0.1}" 'BEGIN { print 600 + int(6600 * scale) }')
export LIMIT_S
DIR=$(mktemp -d)
readonly DIR
trap 'rm -rf "$DIR"' EXIT

# Prints all of it when it ends, so that two do not mix. What hangs is ended, and said to.
run() {
    local code=0 began=$SECONDS
    (cd "$3" && timeout --kill-after 10 "$LIMIT_S" "$4") >"$1/$2" 2>&1 || code=$?
    echo "--- $2: $((SECONDS - began)) s"
    cat "$1/$2"
    [[ "$code" != 124 ]] || echo "$2 was not done after $LIMIT_S s and was ended: see the test it began last"
    return "$code"
}
export -f run

grep -vE "${ALONE/%\$/ }" <<<"$LIST" | xargs -P 2 -L 1 bash -c 'run "$@"' run "$DIR"
grep -E "${ALONE/%\$/ }" <<<"$LIST" | xargs -P 1 -L 1 bash -c 'run "$@"' run "$DIR"
cargo test --workspace --doc "$@"
