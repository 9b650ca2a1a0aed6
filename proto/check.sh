#!/usr/bin/env bash
# Checks that the committed Rust code of the API matches the code that its .proto files generate.
set -euo pipefail
cd "$(dirname "$0")"
generated="$(mktemp -d)"
trap 'rm -rf "$generated"' EXIT
./generate.sh "$generated"
if ! diff -r gen "$generated"; then
    echo "proto/gen differs from what proto/leasehold generates; run proto/generate.sh" >&2
    exit 1
fi
