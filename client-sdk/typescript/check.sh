#!/usr/bin/env bash
# Checks the form, the types, the generated code and the package of the TypeScript client; with --fix, repairs what can
# be repaired instead.
set -euo pipefail
cd "$(dirname "$0")"
./setup.sh
PATH="$(./setup.sh node):$PATH:$PWD/node_modules/.bin"
export PATH

if [[ "${1:-}" == --fix ]]; then
    ./generate.sh
    ./build.sh
    eslint --fix .
    prettier --log-level warn --write .
    exit 0
fi
generated="$(mktemp -d)"
trap 'rm -rf "$generated"' EXIT
./generate.sh "$generated"
diff -r "$generated" src/gen || {
    echo "src/gen is not what generate.sh makes of the API. Run: client-sdk/typescript/generate.sh" >&2
    exit 1
}
./build.sh
tsc -p benchmark --noEmit
prettier --log-level warn --check .
eslint .
attw --pack . --profile esm-only --format ascii --quiet
