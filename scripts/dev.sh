#!/usr/bin/env bash
# Runs the broker on the embedded store (make dev). Before that it builds the broker and the command line in one call of
# cargo, because two calls would compile their common dependencies twice, with different features.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly TARGET="${CARGO_TARGET_DIR:-target}"
readonly PROGRAMS="$TARGET/quickstart"
# The modification time of this file is the time of the last build.
readonly BUILT="$PROGRAMS/.built"
readonly SOURCES=(Cargo.toml Cargo.lock rust-toolchain.toml proto server client-sdk/rust client-sdk/cli)

scripts/preflight.sh tool cargo
scripts/preflight.sh tool cc gcc
for address in "${LEASEHOLD__SERVER__LISTEN:-127.0.0.1:7070}" "${LEASEHOLD__SERVER__ADMIN_LISTEN:-127.0.0.1:7071}"; do
    scripts/preflight.sh port "${address##*:}"
done

plan=""
if [[ ! -e "$BUILT" ]]; then
    plan="Building the broker and the command line for the first time: about 2 minutes on two cores."
elif [[ -n "$(find "${SOURCES[@]}" -newer "$BUILT" -print -quit)" ]]; then
    plan="Building what has changed: less than a minute on two cores."
fi
quiet=(--quiet)
if [[ -n "$plan" ]]; then
    scripts/preflight.sh disk "$TARGET" 8 CARGO_TARGET_DIR
    echo "$plan"
    scripts/preflight.sh crates leasehold-server leasehold-cli
    quiet=()
fi
cargo build --locked --profile quickstart --target-dir "$TARGET" --bins -p leasehold-server -p leasehold-cli \
    ${quiet[@]+"${quiet[@]}"}
touch "$BUILT"
exec "$PROGRAMS/leasehold-server" dev
