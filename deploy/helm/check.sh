#!/usr/bin/env bash
# Checks the form of the Python in deploy, with the tools in the folder that is named, and that nothing in the chart is
# stale; with --fix behind it, repairs both instead.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly RUFF="$1/ruff"

if [[ "${2:-}" == --fix ]]; then
    "$RUFF" check --quiet --fix .
    "$RUFF" format --quiet .
    exec helm/derive.py
fi
"$RUFF" format --check --quiet .
"$RUFF" check --quiet .
helm/derive.py --check
