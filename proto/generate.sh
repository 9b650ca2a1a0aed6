#!/usr/bin/env bash
# Generates the Rust code of the API and its descriptors into gen, or into the folder given as argument.
set -euo pipefail
cd "$(dirname "$0")"
output="${1:-gen}"
mkdir -p "$output"
cargo run --quiet --locked -p leasehold-proto-generate -- . "$output"
