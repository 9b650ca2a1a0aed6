#!/usr/bin/env bash
# Runs the tests of the Python client. With names, as in the lines FAILED of the output, it runs only these tests:
#     client-sdk/python/test.sh tests/test_calls.py::test_name
# The last line is `N passed, N failed`.
set -euo pipefail
cd "$(dirname "$0")"
root="$PWD/../.."
reports="$root/target/reports/python"
trap 'exec "$root/scripts/count_tests.py" $? "$reports"' EXIT
rm -rf "$reports"
PATH="$("$root/scripts/setup.sh" python)/bin:$PATH"
export PATH

# Tests mostly wait, so more tests than cores run at a time.
pytest -q -n "${PYTHON_TEST_WORKERS:-6}" --dist worksteal -p no:cacheprovider \
    --junitxml "$reports/tests.xml" -o junit_family=xunit1 "$@"
