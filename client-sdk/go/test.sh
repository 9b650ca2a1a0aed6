#!/usr/bin/env bash
# Runs the tests of the Go client with real brokers, under the race detector. With names, as in the lines FAILED of the
# output, it runs only these tests:
#     client-sdk/go/test.sh TestName TestOther/its_case
# The last line is `N passed, N failed`.
set -euo pipefail
cd "$(dirname "$0")"
root="$PWD/../.."
reports="$root/target/reports/go"
trap 'exec "$root/scripts/count_tests.py" $? "$reports"' EXIT
rm -rf "$reports"
mkdir -p "$reports"
PATH="$(./setup.sh path):$PATH"

patterns=()
for name in "$@"; do patterns+=("^${name//\//\$/^}\$"); done
# Alternatives in a pattern of go test apply to one level of subtests only, so each name is a separate run.
run() {
    # Tests mostly wait, so more tests than cores run at a time.
    CGO_ENABLED=1 go test -json -race -count=1 -parallel "${GO_TEST_PARALLEL:-6}" "$@" ./... |
        tee -a "$reports/tests.json" |
        python3 -uc '
import json, sys
for line in sys.stdin:
    output = json.loads(line).get("Output", "") if line.startswith("{") else line
    if not output.startswith("=== "):
        print(output, end="")
'
}
if ((${#patterns[@]} == 0)); then
    run
fi
status=0
for pattern in "${patterns[@]}"; do run -run "$pattern" || status=1; done
exit "$status"
