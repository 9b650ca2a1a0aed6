#!/usr/bin/env bash
# Makes sure that what tests and checks need is there: cargo, Redis, buf and cargo-deny.
# As root on Debian it installs what is missing; anywhere else it prints one line to paste and
# exits 2. With the argument `cargo` it looks for cargo only, with `python` for what the Python client's
# tests need besides. It never calls sudo.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly BUF_VERSION=1.75.0
readonly CARGO_DENY_VERSION=0.20.2
readonly CACHE="${LEASEHOLD_CACHE:-$HOME/.cache/leasehold}"
readonly BUF_DIR="$CACHE/buf-$BUF_VERSION"
readonly CARGO_DENY_DIR="$CACHE/cargo-deny-$CARGO_DENY_VERSION"

rust_version="$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)"
if ! command -v cargo >/dev/null; then
    echo "cargo is missing: Leasehold needs Rust $rust_version. Install it with" >&2
    echo "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --default-toolchain $rust_version" >&2
    exit 2
fi
if [[ "${1:-}" == cargo ]]; then
    exit 0
fi

if [[ "${1:-}" == python ]]; then
    # A change of the requirements is another folder.
    requirements=client-sdk/python/requirements-dev.txt
    venv="$CACHE/python-$(cksum <"$requirements" | cut -d' ' -f1)"
    if [[ ! -x "$venv/bin/pytest" ]]; then
        if ! python3 -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            if [[ $EUID -ne 0 || ! -f /etc/debian_version ]]; then
                echo "Python 3.10 or newer with venv is missing: install python3-venv, then try again" >&2
                exit 2
            fi
            export DEBIAN_FRONTEND=noninteractive
            apt-get update -q
            apt-get install -y -q --no-install-recommends python3-venv </dev/null
        fi
        rm -rf "$venv"
        python3 -m venv "$venv"
        "$venv/bin/pip" install -q --disable-pip-version-check --no-deps -r "$requirements" || { rm -rf "$venv"; exit 1; }
    fi
    echo "$venv"
    exit 0
fi

packages=()
# Sentinel and Cluster are the same program. Tests on another one name it.
if [[ -z "${STORE_SERVER:-}" ]]; then
    command -v redis-server >/dev/null || packages+=(redis-server)
elif ! command -v "$STORE_SERVER" >/dev/null; then
    echo "STORE_SERVER is $STORE_SERVER, which is not there. Install it, or unset STORE_SERVER." >&2
    exit 2
fi
buf_missing=
if [[ ! -x "$BUF_DIR/node_modules/.bin/buf" ]]; then
    buf_missing=1
fi
# buf's launcher is a node program, so node stays needed after the installation.
if ! command -v node >/dev/null || { [[ -n $buf_missing ]] && ! command -v npm >/dev/null; }; then
    packages+=(npm)
fi
cargo_deny_missing=
if [[ ! -x "$CARGO_DENY_DIR/bin/cargo-deny" ]]; then
    cargo_deny_missing=1
fi
if ((${#packages[@]} == 0)) && [[ -z $buf_missing && -z $cargo_deny_missing ]]; then
    exit 0
fi

npm_line="npm install --no-save --no-audit --no-fund --prefix '$BUF_DIR' @bufbuild/buf@$BUF_VERSION"
cargo_line="cargo install --locked --root '$CARGO_DENY_DIR' --version $CARGO_DENY_VERSION cargo-deny"

if [[ $EUID -ne 0 || ! -f /etc/debian_version ]]; then
    steps=()
    if ((${#packages[@]} > 0)); then
        if [[ -f /etc/debian_version ]]; then
            steps+=("sudo apt-get update && sudo apt-get install -y ${packages[*]}")
        else
            names="${packages[*]}"
            names="${names/redis-server/redis}"
            steps+=("brew install ${names/npm/node}")
        fi
    fi
    [[ -z $buf_missing ]] || steps+=("$npm_line")
    [[ -z $cargo_deny_missing ]] || steps+=("$cargo_line")
    line="${steps[0]}"
    for step in "${steps[@]:1}"; do
        line+=" && $step"
    done
    echo "Something is missing. Paste this line (or install the same another way), then try again:" >&2
    echo "$line" >&2
    exit 2
fi

if ((${#packages[@]} > 0)); then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    apt-get install -y -q --no-install-recommends "${packages[@]}" </dev/null
fi
if [[ -n $buf_missing ]]; then
    mkdir -p "$BUF_DIR"
    eval "$npm_line" </dev/null
fi
if [[ -n $cargo_deny_missing ]]; then
    build_dir="$(mktemp -d)"
    trap 'rm -rf "$build_dir"' EXIT
    CARGO_TARGET_DIR="$build_dir" eval "$cargo_line" </dev/null
fi
