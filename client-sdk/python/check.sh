#!/usr/bin/env bash
# Checks the formatting and the types of the Python client, with the tools in the folder given as argument. With --fix
# as the second argument it corrects what can be corrected instead.
set -euo pipefail
cd "$(dirname "$0")"
export PATH="$1:$PATH"

if [[ "${2:-}" == --fix ]]; then
    ruff check --quiet --fix .
    ruff format --quiet .
    exit 0
fi
ruff format --check --quiet .
ruff check --quiet .
mypy
