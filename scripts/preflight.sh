#!/usr/bin/env bash
# Checks one precondition of a command:
#   preflight.sh tool NAME [PACKAGE]         a program on the PATH; PACKAGE is its Debian package, if named otherwise
#   preflight.sh disk PATH GB [VARIABLE]     free space for PATH, which need not exist; VARIABLE names another folder
#   preflight.sh port NUMBER                 no process listens on that port of this machine
#   preflight.sh crates PACKAGE...           the crates that packages are built from; downloads missing ones
#   preflight.sh cache-owner PATH            PATH, if it exists, belongs to the current user
# If the check fails, the script prints one sentence and the line that fixes the problem, and exits 2.
set -euo pipefail

# Prints a sentence and the line to paste, and exits 2.
refuse() {
    printf '%s\n  %s\n' "$1" "$2" >&2
    exit 2
}

# Prints the command that installs a package on this machine.
installation() {
    if [[ "$1" == cargo ]]; then
        echo "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal --default-toolchain none && . \"\$HOME/.cargo/env\""
    elif [[ "$1" == gcc && "$OSTYPE" == darwin* ]]; then
        echo "xcode-select --install"
    elif [[ -f /etc/debian_version ]]; then
        echo "sudo apt-get update && sudo apt-get install -y $1"
    else
        echo "brew install $1"
    fi
}

check_tool() {
    command -v "$1" >/dev/null || refuse "$1 is not installed; install it with:" "$(installation "${2:-$1}")"
}

check_disk() {
    local path="$1" gigabytes="$2" variable="${3:-}" existing="$1" free_kb
    until [[ -e "$existing" ]]; do existing="$(dirname "$existing")"; done
    free_kb="$(df -Pk "$existing" | awk 'NR == 2 { print $4 }')"
    ((free_kb < gigabytes * 1000 * 1000)) || return 0
    local sentence="$path needs $gigabytes GB of free disk space, but has $((free_kb / 1000 / 1000)) GB"
    if [[ -n "$variable" ]]; then
        refuse "$sentence; free some, or name a folder on another disk with:" "export $variable=/path/on/another/disk"
    fi
    refuse "$sentence; find what takes it with:" "du -xhd1 '$existing' | sort -h"
}

check_port() {
    local port="$1" pid=""
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || return 0
    if command -v lsof >/dev/null; then
        pid="$(lsof -nP -t -iTCP:"$port" -sTCP:LISTEN 2>/dev/null | head -n 1 || true)"
    elif command -v ss >/dev/null; then
        pid="$(ss -Hltnp "sport = :$port" 2>/dev/null | sed -n 's/.*pid=\([0-9]*\).*/\1/p' | head -n 1)"
    fi
    if [[ -n "$pid" ]]; then
        refuse "port $port is in use by $(ps -o comm= -p "$pid") (process $pid); stop it with:" "kill $pid"
    fi
    refuse "port $port is in use; find the process with:" "sudo lsof -nP -iTCP:$port -sTCP:LISTEN"
}

# The check calls cargo, so that its configured mirrors and proxies are used.
check_crates() {
    local packages=() name errors
    for name in "$@"; do packages+=(--package "$name"); done
    local tree=(cargo tree --locked --quiet --edges normal,build "${packages[@]}")
    if "${tree[@]}" --offline >/dev/null 2>&1; then
        return
    fi
    errors="$(CARGO_NET_RETRY=0 "${tree[@]}" 2>&1 >/dev/null)" ||
        refuse "crates are missing and cannot be downloaded ($(tail -n 1 <<<"$errors" | sed 's/^ *//')); connect to the network and run:" \
            "cargo fetch --locked"
}

check_cache_owner() {
    local path="$1"
    if [[ -e "$path" && ! -O "$path" ]]; then
        refuse "$path belongs to $(ls -ld "$path" | awk '{ print $3 }'), not to $(id -un); take it over with:" \
            "sudo chown -R $(id -un) '$path'"
    fi
}

check="${1:?the check is missing: see the beginning of this file}"
shift
case "$check" in
tool) check_tool "$@" ;;
disk) check_disk "$@" ;;
port) check_port "$@" ;;
crates) check_crates "$@" ;;
cache-owner) check_cache_owner "$@" ;;
*)
    echo "$check is not a check of preflight.sh; the beginning of the file lists them" >&2
    exit 64
    ;;
esac
