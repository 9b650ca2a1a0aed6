#!/usr/bin/env bash
# Runs the tests of the Python client, with the tools in the folder that is the first argument; with names behind it, as
# the lines FAILED print them, those alone:
#     client-sdk/python/test.sh "$(scripts/setup.sh python)/bin" tests/test_calls.py::test_name
# The last line is `N passed, N failed`.
set -euo pipefail
cd "$(dirname "$0")"
root="$PWD/../.."
reports="$root/target/reports/python"
trap 'exec "$root/scripts/count_tests.py" $? "$reports"' EXIT
rm -rf "$reports"
export PATH="$1:$PATH"
shift

# Tests mostly wait, so more of them than there are cores run at a time.
pytest -q -n "${PYTHON_TEST_WORKERS:-6}" --dist worksteal -p no:cacheprovider \
    --junitxml "$reports/tests.xml" -o junit_family=xunit1 "$@"
