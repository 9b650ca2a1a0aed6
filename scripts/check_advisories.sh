#!/usr/bin/env bash
# Fails if a crate of Cargo.lock has a security advisory: check_advisories.sh CARGO-DENY DATABASE. The database is a
# folder with a clone of https://github.com/RustSec/advisory-db. The script downloads nothing, so the crates must have
# been downloaded before. Exceptions are in deny.toml.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly CARGO_DENY="$1" DATABASE="$2"
if [[ ! -d "$DATABASE/crates" || ! -e "$DATABASE/.git" ]]; then
    echo "ADVISORY_DB is $DATABASE, which is no clone of the RustSec advisory database: clone it there, or unset ADVISORY_DB" >&2
    exit 2
fi
newest="$(git -C "$DATABASE" log -1 --format=%cs)"
echo "Advisories until $newest:"

ADVISORY_DATABASES="$(mktemp -d)"
export ADVISORY_DATABASES
trap 'rm -rf "$ADVISORY_DATABASES"' EXIT
# cargo-deny derives this name from the address of the database.
ln -s "$(realpath "$DATABASE")" "$ADVISORY_DATABASES/advisory-db-3157b0e258782691"
"$CARGO_DENY" --locked --workspace --offline check advisories
