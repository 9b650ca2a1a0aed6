#!/usr/bin/env bash
# Compiles a crate of the workspace (RUSTC_WORKSPACE_WRAPPER) with the coverage counters that libFuzzer reads, and without
# optimization, which would take longer than it saves in the seconds that a target runs.
set -euo pipefail
exec "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Copt-level=0 -Cdebuginfo=0
