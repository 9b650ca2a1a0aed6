#!/usr/bin/env bash
# Builds leasehold-server-ahead beside the broker: the same source as the next version. It adds what a version with the
# same key schema may add: a field to the record of each lock, a field to the era, and a kind of message between
# brokers. Tests run it together with the current broker in rolling upgrades. Arguments are passed to cargo.
set -euo pipefail
cd "$(dirname "$0")/.."

target="${CARGO_TARGET_DIR:-$PWD/target}"
copy="$target/ahead"

# Replaces $2 in the file $1 by $3, and fails if the file does not contain $2. The copy gets the modification time of
# its source, so that cargo does not build it again.
put() {
    grep -qF -- "$2" "$copy/$1" || { echo "scripts/ahead.sh: $1 no longer has: $2" >&2; exit 1; }
    FROM="$2" TO="$3" perl -0pi -e 's/\Q$ENV{FROM}\E/$ENV{TO}/' "$copy/$1"
    if [[ "$1" -nt scripts/ahead.sh ]]; then touch -r "$1" "$copy/$1"; else touch -r scripts/ahead.sh "$copy/$1"; fi
}

rm -rf "$copy"
mkdir -p "$copy"
cp -p Cargo.toml Cargo.lock rust-toolchain.toml "$copy"
cp -pr proto server "$copy"
# Members without code, but with their dependencies. Other features would cause cargo to build the dependencies again.
for member in client-sdk/cli client-sdk/rust fuzz tests; do
    mkdir -p "$copy/$member/src"
    sed -e '/^\[\[/,/^$/d' "$member/Cargo.toml" >"$copy/$member/Cargo.toml"
    echo '//! Nothing.' >"$copy/$member/src/lib.rs"
    find "$copy/$member" -type f -exec touch -r scripts/ahead.sh {} +
done
sed -i 's/^version = .*/version = "99.0.0"/' "$copy/Cargo.toml"
# Optimizing the copy would take longer than it saves.
put Cargo.toml $'[profile.dev.package.leasehold-server]\nopt-level = 1' $'[profile.dev.package.leasehold-server]\nopt-level = 0'
put server/Cargo.toml 'name = "leasehold-server"' $'name = "leasehold-server"\nautobins = false'
printf '\n[[bin]]\nname = "leasehold-server-ahead"\npath = "src/main.rs"\n' >>"$copy/server/Cargo.toml"
put server/src/store/redis/lua/record.lua "{ 'v', SCHEMA, nil" "{ 'v', SCHEMA, 'later', '1', nil"
put server/src/store/redis/lua/messages.lua \
    "else call('PUBLISH', channel, message) end" \
    "else call('PUBLISH', channel, message) call('PUBLISH', channel, lock .. '\\n?\\nlater') end"
put server/src/store/redis/era.rs '"{SCHEMA}|{}|{}|{}|{}|{}|{}|{}",' '"{SCHEMA}|{}|{}|{}|{}|{}|{}|{}|later",'

CARGO_TARGET_DIR="$target" cargo build --manifest-path "$copy/Cargo.toml" --bins --examples "$@"
