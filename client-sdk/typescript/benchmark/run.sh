#!/usr/bin/env bash
# Measures the client beside redlock on the same Redis. Options: --rounds N, --seconds N. LEASEHOLD_SERVER names the
# broker, which should be a release build.
set -euo pipefail
cd "$(dirname "$0")"
../build.sh
PATH="$(../setup.sh node):$PATH"
export LEASEHOLD_SERVER="${LEASEHOLD_SERVER:-${CARGO_TARGET_DIR:-$PWD/../../../target}/release/leasehold-server}"
../node_modules/.bin/tsc -p .
exec node build/benchmark/run.js "$@"
