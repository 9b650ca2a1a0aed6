#!/usr/bin/env bash
# Makes sure that what tests and checks need is there: cargo, Redis, buf, cargo-deny, and Python with the tools of
# its client. As root on Debian it installs what is missing; anywhere else it prints one line to paste and
# exits 2. With the argument `cargo` it looks for cargo only; with `python` it installs nothing, and prints where
# Python's tools are. It never calls sudo.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly BUF_VERSION=1.75.0
readonly CARGO_DENY_VERSION=0.20.2
readonly CACHE="${LEASEHOLD_CACHE:-$HOME/.cache/leasehold}"
readonly BUF_DIR="$CACHE/buf-$BUF_VERSION"
readonly CARGO_DENY_DIR="$CACHE/cargo-deny-$CARGO_DENY_VERSION"
readonly PYTHON_TOOLS=client-sdk/python/requirements-dev.txt
# A change of the requirements is another folder.
PYTHON_DIR="$CACHE/python-$(cksum <"$PYTHON_TOOLS" | cut -d' ' -f1)"
readonly PYTHON_DIR

if [[ "${1:-}" == python ]]; then
    if [[ ! -e "$PYTHON_DIR/complete" ]]; then
        echo "The Python client's tools are missing. Run: make setup" >&2
        exit 2
    fi
    echo "$PYTHON_DIR"
    exit 0
fi

rust_version="$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)"
if ! command -v cargo >/dev/null; then
    echo "cargo is missing: Leasehold needs Rust $rust_version. Install it with" >&2
    echo "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --default-toolchain $rust_version" >&2
    exit 2
fi
if [[ "${1:-}" == cargo ]]; then
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
python_missing=
if [[ ! -e "$PYTHON_DIR/complete" ]]; then
    python_missing=1
fi
has_python() {
    python3 -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}
if [[ -n $python_missing ]] && ! has_python; then
    packages+=(python3-venv)
fi
if ((${#packages[@]} == 0)) && [[ -z $buf_missing && -z $cargo_deny_missing && -z $python_missing ]]; then
    exit 0
fi

npm_line="npm install --no-save --no-audit --no-fund --prefix '$BUF_DIR' @bufbuild/buf@$BUF_VERSION"
cargo_line="cargo install --locked --root '$CARGO_DENY_DIR' --version $CARGO_DENY_VERSION cargo-deny"
python_line="rm -rf '$PYTHON_DIR' && python3 -m venv '$PYTHON_DIR'"
python_line+=" && '$PYTHON_DIR/bin/pip' install -q --disable-pip-version-check --no-deps -r '$PYTHON_TOOLS'"
python_line+=" && touch '$PYTHON_DIR/complete'"

if [[ $EUID -ne 0 || ! -f /etc/debian_version ]]; then
    steps=()
    if ((${#packages[@]} > 0)); then
        if [[ -f /etc/debian_version ]]; then
            steps+=("sudo apt-get update && sudo apt-get install -y ${packages[*]}")
        else
            names="${packages[*]}"
            names="${names/redis-server/redis}"
            names="${names/npm/node}"
            steps+=("brew install ${names/python3-venv/python}")
        fi
    fi
    [[ -z $buf_missing ]] || steps+=("$npm_line")
    [[ -z $cargo_deny_missing ]] || steps+=("$cargo_line")
    [[ -z $python_missing ]] || steps+=("$python_line")
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
if [[ -n $python_missing ]]; then
    if ! has_python; then
        echo "This Debian's Python is too old: the Python client's tools need 3.10 or newer" >&2
        exit 2
    fi
    eval "$python_line" </dev/null
fi
