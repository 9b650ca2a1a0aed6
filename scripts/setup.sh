#!/usr/bin/env bash
# Makes sure that what tests and checks need is there: cargo, Redis, buf, cargo-deny, Go, grpcurl, Python with the
# tools of its client, and what the other clients need (their own setup.sh). As root on Debian it installs what is
# missing; anywhere else it prints a line to paste and exits 2. With the argument `cargo` it looks for cargo only;
# with `python`, `go` or `grpcurl` it installs nothing, and prints in which folder that is. It never calls sudo.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly BUF_VERSION=1.75.0
readonly CARGO_DENY_VERSION=0.20.2
readonly GO_VERSION=1.26.0
readonly GRPCURL_VERSION=1.9.4
readonly CACHE="${LEASEHOLD_CACHE:-$HOME/.cache/leasehold}"
readonly BUF_DIR="$CACHE/buf-$BUF_VERSION"
readonly CARGO_DENY_DIR="$CACHE/cargo-deny-$CARGO_DENY_VERSION"
readonly GO_DIR="$CACHE/go-$GO_VERSION"
readonly GRPCURL_DIR="$CACHE/grpcurl-$GRPCURL_VERSION"
readonly PYTHON_TOOLS=client-sdk/python/requirements-dev.txt
# A change of the requirements is another folder.
PYTHON_DIR="$CACHE/python-$(cksum <"$PYTHON_TOOLS" | cut -d' ' -f1)"
readonly PYTHON_DIR

has_python() {
    python3 -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

# The machine's own Go, if it is new enough for all that is built here.
has_go() {
    local version
    version="$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null)" || return 1
    printf 'go%s\n%s\n' "$GO_VERSION" "$version" | sort -CV
}

# Says where something is, or that it is missing.
where() {
    if [[ ! -e "$1" ]]; then
        echo "${1##*/} is missing. Run: make setup" >&2
        exit 2
    fi
    echo "$2"
    exit 0
}

case "${1:-}" in
python) where "$PYTHON_DIR/complete" "$PYTHON_DIR" ;;
grpcurl) where "$GRPCURL_DIR/bin/grpcurl" "$GRPCURL_DIR/bin" ;;
go)
    ! has_go || where "$(command -v go)" "$(dirname "$(command -v go)")"
    where "$GO_DIR/bin/go" "$GO_DIR/bin"
    ;;
esac

rust_version="$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)"
if ! command -v cargo >/dev/null; then
    echo "cargo is missing: Leasehold needs Rust $rust_version. Install it with" >&2
    echo "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --default-toolchain $rust_version" >&2
    exit 2
fi
if [[ "${1:-}" == cargo ]]; then
    exit 0
fi

# Debian's packages, and then what to run, in this order.
packages=()
steps=()
# Sentinel and Cluster are the same program. Tests on another one name it.
if [[ -z "${STORE_SERVER:-}" ]]; then
    command -v redis-server >/dev/null || packages+=(redis-server)
elif ! command -v "$STORE_SERVER" >/dev/null; then
    echo "STORE_SERVER is $STORE_SERVER, which is not there. Install it, or unset STORE_SERVER." >&2
    exit 2
fi
# buf's launcher is a node program, so node stays needed after the installation.
command -v node >/dev/null || packages+=(npm)
if [[ ! -x "$BUF_DIR/node_modules/.bin/buf" ]]; then
    command -v node >/dev/null && ! command -v npm >/dev/null && packages+=(npm)
    steps+=("npm install --no-save --no-audit --no-fund --prefix '$BUF_DIR' @bufbuild/buf@$BUF_VERSION")
fi
if [[ ! -x "$CARGO_DENY_DIR/bin/cargo-deny" ]]; then
    steps+=("cargo install --locked --root '$CARGO_DENY_DIR' --version $CARGO_DENY_VERSION cargo-deny")
fi
if [[ ! -e "$PYTHON_DIR/complete" ]]; then
    has_python || packages+=(python3-venv)
    steps+=("rm -rf '$PYTHON_DIR' && python3 -m venv '$PYTHON_DIR'"
        "'$PYTHON_DIR/bin/pip' install -q --disable-pip-version-check --no-deps -r '$PYTHON_TOOLS'"
        "touch '$PYTHON_DIR/complete'")
fi
go="$GO_DIR/bin/go"
if has_go; then
    go=go
elif [[ ! -x "$go" ]]; then
    # Any Go can fetch a newer one, which is a module; modules keep no modes of files.
    command -v go >/dev/null || packages+=(golang-go)
    toolchain="golang.org/toolchain@v0.0.1-go$GO_VERSION.linux-$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')"
    steps+=("mkdir -p '$GO_DIR' && cd '$GO_DIR' && GOMODCACHE='$GO_DIR/mod' go mod download '$toolchain'"
        "chmod -R u+w '$GO_DIR/mod/$toolchain'" "chmod +x '$GO_DIR/mod/$toolchain'/{bin,pkg/tool/*}/*"
        "ln -sfn 'mod/$toolchain/bin' '$GO_DIR/bin' && cd - >/dev/null")
fi
if [[ ! -x "$GRPCURL_DIR/bin/grpcurl" ]]; then
    grpcurl="github.com/fullstorydev/grpcurl/cmd/grpcurl@v$GRPCURL_VERSION"
    steps+=("GOBIN='$GRPCURL_DIR/bin' GOTOOLCHAIN=local '$go' install '$grpcurl'")
fi

if ((${#packages[@]} + ${#steps[@]} > 0)) && [[ $EUID -ne 0 || ! -f /etc/debian_version ]]; then
    if ((${#packages[@]} > 0)); then
        if [[ -f /etc/debian_version ]]; then
            steps=("sudo apt-get update && sudo apt-get install -y ${packages[*]}" "${steps[@]}")
        else
            names="${packages[*]}"
            names="${names/redis-server/redis}"
            names="${names/npm/node}"
            names="${names/golang-go/go}"
            steps=("brew install ${names/python3-venv/python}" "${steps[@]}")
        fi
    fi
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
if [[ ! -e "$PYTHON_DIR/complete" ]] && ! has_python; then
    echo "This Debian's Python is too old: the Python client's tools need 3.10 or newer" >&2
    exit 2
fi
if ((${#steps[@]} > 0)); then
    build_dir="$(mktemp -d)"
    trap 'rm -rf "$build_dir"' EXIT
    export CARGO_TARGET_DIR="$build_dir"
    for step in "${steps[@]}"; do
        eval "$step" </dev/null
    done
fi
