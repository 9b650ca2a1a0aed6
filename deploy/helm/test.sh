#!/usr/bin/env bash
# Tests the chart, with the broker that LEASEHOLD_SERVER names or the debug build; with names, as the lines FAILED print
# them, those tests alone:
#     deploy/helm/test.sh test_valid.py::test_name
# The last line is `N passed, N failed`.
set -euo pipefail
cd "$(dirname "$0")/tests"
root="$PWD/../../.."
reports="$root/target/reports/helm"
trap 'exec "$root/scripts/count_tests.py" $? "$reports"' EXIT
rm -rf "$reports"
CHART_TOOLS="$(../setup.sh path)"
export CHART_TOOLS LEASEHOLD_SERVER="${LEASEHOLD_SERVER:-${CARGO_TARGET_DIR:-$root/target}/debug/leasehold-server}"

# Each process renders what it needs once.
"$CHART_TOOLS/python/bin/pytest" -q -n 2 --dist loadfile -p no:cacheprovider \
    --junitxml "$reports/tests.xml" -o junit_family=xunit1 "$@"
