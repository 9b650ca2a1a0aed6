#!/usr/bin/env bash
# Generates the stubs, builds the library into dist, and builds the tests, the examples and the probe into build. It is
# quick if nothing has changed.
set -euo pipefail
cd "$(dirname "$0")"
./setup.sh
PATH="$(./setup.sh node):$PATH"

if [[ ! -d src/gen || -n "$(find ../../proto/leasehold generate.sh package-lock.json -newer src/gen -print -quit)" ]]; then
    ./generate.sh
fi
# Output of deleted sources must be removed.
if [[ -e dist ]] && [[ -n "$(find src tests examples -newer dist -type d -print -quit)" ]]; then
    rm -rf dist build
fi
mkdir -p build
node_modules/.bin/tsc --build
touch dist
