#!/usr/bin/env bash
# Runs the tests of the TypeScript client against real brokers (LEASEHOLD_SERVER names their binary); with names of
# files, as in `test.sh calls`, or of tests, as the lines FAILED print them, those alone:
#     client-sdk/typescript/test.sh "the name of a test"
# The last line is `N passed, N failed`.
set -euo pipefail
cd "$(dirname "$0")"
root="$PWD/../.."
reports="$root/target/reports/typescript"
trap 'exec "$root/scripts/count_tests.py" $? "$reports"' EXIT
rm -rf "$reports"
mkdir -p "$reports"
./build.sh
PATH="$(./setup.sh node):$PATH"
export PATH

files=() patterns=()
for name in "$@"; do
    file="$(basename "$name" .test.js)"
    if [[ -f "build/tests/$file.test.js" ]]; then
        files+=("build/tests/$file.test.js")
    else
        patterns+=("--test-name-pattern=^$(sed 's/[][\.*^$+?(){}|/]/\\&/g' <<<"$name")\$")
    fi
done
((${#files[@]} > 0)) || files=(build/tests/*.test.js)
# Tests mostly wait, so more of them than there are cores run at a time.
workers="${TYPESCRIPT_TEST_WORKERS:-5}"
node --test --test-concurrency="$workers" --test-timeout=60000 --test-reporter=spec --test-reporter-destination=stdout \
    --test-reporter=junit --test-reporter-destination="$reports/tests.xml" "${patterns[@]}" "${files[@]}"
