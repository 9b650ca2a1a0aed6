#!/usr/bin/env bash
# Tests the chart, with the broker that LEASEHOLD_SERVER names or the debug build. With names, as in the lines FAILED of
# the output, it runs only these tests:
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

# Rendered charts are cached per process, so that each process renders a chart once.
"$CHART_TOOLS/python/bin/pytest" -q -n 2 --dist loadfile -p no:cacheprovider \
    --junitxml "$reports/tests.xml" -o junit_family=xunit1 "$@"
