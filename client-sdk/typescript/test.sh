#!/usr/bin/env bash
# Runs the tests of the TypeScript client against real brokers (LEASEHOLD_SERVER names their binary); with names of
# files of tests behind it, as in `test.sh calls`, those alone.
set -euo pipefail
cd "$(dirname "$0")"
./build.sh
PATH="$(./setup.sh node):$PATH"
export PATH

files=()
for name in "${@:-*}"; do
    # shellcheck disable=SC2206  # A pattern, on purpose.
    files+=(build/tests/$name.test.js)
done
# Tests mostly wait, so more of them than there are cores run at a time.
workers="${TYPESCRIPT_TEST_WORKERS:-5}"
exec node --test --test-concurrency="$workers" --test-timeout=60000 --test-reporter=spec "${files[@]}"
