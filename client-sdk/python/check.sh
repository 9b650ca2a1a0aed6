#!/usr/bin/env bash
# Checks the Python client and runs its tests, with the tools in the environment that is named.
set -euo pipefail
cd "$(dirname "$0")"
export PATH="$1/bin:$PATH"

ruff format --check --quiet .
ruff check --quiet .
mypy
# Tests mostly wait, so more of them than there are cores run at a time.
pytest -q -n "${PYTHON_TEST_WORKERS:-6}" --dist worksteal -p no:cacheprovider
