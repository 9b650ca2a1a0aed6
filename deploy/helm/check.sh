#!/usr/bin/env bash
# Checks the formatting of the Python code in deploy, with the tools in the folder given as argument, and that no
# generated part of the chart is out of date. With --fix as the second argument it corrects both instead.
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
