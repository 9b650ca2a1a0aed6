#!/usr/bin/env bash
# Tests the chart, with the broker that LEASEHOLD_SERVER names or the debug build.
set -euo pipefail
cd "$(dirname "$0")/tests"
CHART_TOOLS="$(../setup.sh path)"
export CHART_TOOLS LEASEHOLD_SERVER="${LEASEHOLD_SERVER:-$PWD/../../../target/debug/leasehold-server}"

# Each process renders what it needs once.
exec "$CHART_TOOLS/python/bin/pytest" -q -n 2 --dist loadfile -p no:cacheprovider "$@"
