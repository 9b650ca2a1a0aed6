#!/usr/bin/env bash
# Installs Node 20.9 or newer and the packages of package-lock.json, in addition to what scripts/setup.sh provides.
# Missing packages are installed as root on Debian; on other systems the script prints one line to paste and exits 2.
# With the argument `node` it installs nothing, and prints the folder of the Node that is used.
set -euo pipefail
cd "$(dirname "$0")"
source ../../scripts/provide.sh

# Version of Node to install if Node is missing or too old, as Debian's is. The npm registry provides it as a package.
readonly NODE_VERSION=22.23.3
readonly NODE_DIR="$CACHE/node-$NODE_VERSION"
readonly NODE_BIN="$NODE_DIR/node_modules/node/bin"

is_new_enough() {
    local version
    version="$("$1" --version 2>/dev/null)" || return 1
    printf 'v20.9.0\n%s\n' "$version" | sort -CV
}
node_bin=
if is_new_enough node; then
    node_bin="$(dirname "$(command -v node)")"
elif is_new_enough "$NODE_BIN/node"; then
    node_bin="$NODE_BIN"
fi
if [[ "${1:-}" == node ]]; then
    if [[ -z $node_bin ]]; then
        echo "Node 20.9 or newer is missing. Run: client-sdk/typescript/setup.sh" >&2
        exit 2
    fi
    echo "$node_bin"
    exit 0
fi

if [[ -z $node_bin ]]; then
    node_bin="$NODE_BIN"
    add_folder "$NODE_DIR" node_modules/node/bin/node \
        "npm install --no-save --no-audit --no-fund --prefix \"\$NEW\" node@$NODE_VERSION"
fi
for folder in . benchmark; do
    # npm writes this file at the end of an installation.
    done_file="$folder/node_modules/.package-lock.json"
    [[ ! $folder/package-lock.json -nt $done_file ]] || rm -f "$done_file"
    add_step "$PWD/$done_file" "cd '$folder'; PATH=\"$node_bin:\$PATH\" npm ci --no-audit --no-fund"
done
if ((${#step_results[@]} > 0)) && ! command -v npm >/dev/null; then
    packages+=(npm)
fi
provide
