#!/usr/bin/env bash
# Checks the formatting, the types and the package of the TypeScript client. With --fix it corrects what can be
# corrected instead.
set -euo pipefail
cd "$(dirname "$0")"
./setup.sh
PATH="$(./setup.sh node):$PATH:$PWD/node_modules/.bin"
export PATH

if [[ "${1:-}" == --fix ]]; then
    ./build.sh
    eslint --fix .
    prettier --log-level warn --write .
    exit 0
fi
./build.sh
tsc -p benchmark --noEmit
prettier --log-level warn --check .
eslint .
attw --pack . --profile esm-only --format ascii --quiet
