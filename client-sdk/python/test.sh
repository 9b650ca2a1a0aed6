#!/usr/bin/env bash
# Runs the tests of the Python client, with the tools in the folder that is named.
set -euo pipefail
cd "$(dirname "$0")"
export PATH="$1:$PATH"

# Tests mostly wait, so more of them than there are cores run at a time.
pytest -q -n "${PYTHON_TEST_WORKERS:-6}" --dist worksteal -p no:cacheprovider
