#!/usr/bin/env bash
# Installs what tests need: cargo, Redis, valgrind, Python with the tools of its client, the requirements of the other
# clients and the chart (by their own setup.sh), promtool, grpcurl, and a browser with its driver. Missing packages are
# installed as root on Debian; on other systems the script prints one line to paste and exits 2. Everything else is
# installed into the cache, as any user. The script never calls sudo. With an argument it does one thing instead:
#   check                            installs what only `make check` needs
#   fuzz                             installs what only `make soak-fuzz` needs
#   python, buf, grpcurl, playwright, cargo-fuzz
#                                    prints the folder of the tool, and installs nothing
#   chromium                         prints the path of the browser
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/provide.sh

readonly CARGO_DENY_VERSION=0.20.2
readonly CARGO_FUZZ_VERSION=0.13.2
readonly GRPCURL_VERSION=1.9.4
readonly PLAYWRIGHT_VERSION=1.65.1
readonly CARGO_DENY_DIR="$CACHE/cargo-deny-$CARGO_DENY_VERSION"
readonly CARGO_FUZZ_DIR="$CACHE/cargo-fuzz-$CARGO_FUZZ_VERSION"
readonly GRPCURL_DIR="$CACHE/grpcurl-$GRPCURL_VERSION"
readonly PLAYWRIGHT_DIR="$CACHE/playwright-$PLAYWRIGHT_VERSION"
readonly PLAYWRIGHT="$PLAYWRIGHT_DIR/node_modules/playwright-core/package.json"
# Debian's smallest Chromium, or any other that is installed.
CHROMIUM="$(command -v chromium-headless-shell || command -v chromium || true)"
readonly CHROMIUM
readonly PYTHON_TOOLS=client-sdk/python/requirements-dev.txt
# The name of the folder depends on the requirements.
PYTHON_DIR="$CACHE/python-$(cksum <"$PYTHON_TOOLS" | cut -d' ' -f1)"
readonly PYTHON_DIR

# Prints the folder of a tool, or fails if the tool is missing. $1: its name; $2: the file that proves that it is
# installed; $3: its folder.
tell() {
    if [[ ! -e "$2" ]]; then
        echo "$1 is missing. Run: make setup" >&2
        exit 2
    fi
    echo "$3"
    exit 0
}

case "${1:-}" in
python) tell "What the Python client's tests need" "$PYTHON_DIR/complete" "$PYTHON_DIR" ;;
buf)
    # The binary itself, because its launcher in .bin needs Node on the PATH.
    buf=(client-sdk/typescript/node_modules/@bufbuild/buf-*/bin)
    tell buf "${buf[0]}/buf" "$PWD/${buf[0]}"
    ;;
playwright) tell playwright-core "$PLAYWRIGHT" "$PLAYWRIGHT_DIR" ;;
chromium) tell "A browser" "$CHROMIUM" "$CHROMIUM" ;;
cargo-fuzz) tell cargo-fuzz "$CARGO_FUZZ_DIR/bin/cargo-fuzz" "$CARGO_FUZZ_DIR/bin" ;;
grpcurl) tell grpcurl "$GRPCURL_DIR/bin/grpcurl" "$GRPCURL_DIR/bin" ;;
esac

scripts/preflight.sh tool cargo
# Installs a program of cargo into a folder of the cache. $1: the folder; $2: the program; $3: its version. It is not
# built in the target folder of the project, because that folder may be kept between runs.
install_program() {
    add_folder "$1" "bin/$2" "CARGO_TARGET_DIR=\"\$NEW/target\" \
cargo install --locked --root \"\$NEW\" --version $3 $2; rm -rf \"\$NEW/target\""
    provide
}

case "${1:-}" in
check) install_program "$CARGO_DENY_DIR" cargo-deny "$CARGO_DENY_VERSION"; exit 0 ;;
fuzz) install_program "$CARGO_FUZZ_DIR" cargo-fuzz "$CARGO_FUZZ_VERSION"; exit 0 ;;
esac

# redis-server also runs Sentinel and Cluster. STORE_SERVER names another server to test.
if [[ -z "${STORE_SERVER:-}" ]]; then
    command -v redis-server >/dev/null || packages+=(redis-server)
elif ! command -v "$STORE_SERVER" >/dev/null; then
    echo "STORE_SERVER is $STORE_SERVER, which is not there. Install it, or unset STORE_SERVER." >&2
    exit 2
fi
# Valgrind counts the instructions of Redis. It does not run on macOS.
[[ "$OSTYPE" == darwin* ]] || command -v valgrind >/dev/null || packages+=(valgrind)
# promtool checks the alert rules.
command -v promtool >/dev/null || packages+=(prometheus)
[[ -n "$CHROMIUM" ]] || packages+=(chromium-headless-shell)
if [[ ! -e "$PLAYWRIGHT" ]]; then
    command -v npm >/dev/null || packages+=(npm)
    add_folder "$PLAYWRIGHT_DIR" node_modules/playwright-core/package.json \
        "npm install --no-save --no-audit --no-fund --prefix \"\$NEW\" playwright-core@$PLAYWRIGHT_VERSION"
fi
install_python_tools() {
    python3 -c "$is_new" || { echo 'The tools of the Python client need Python 3.10 or newer' >&2; exit 2; }
    rm -rf "$PYTHON_DIR"
    python3 -m venv "$PYTHON_DIR"
    "$PYTHON_DIR/bin/pip" install -q --disable-pip-version-check --no-deps -r "$PYTHON_TOOLS"
    touch "$PYTHON_DIR/complete"
}
if [[ ! -e "$PYTHON_DIR/complete" ]]; then
    is_new='import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 10))'
    python3 -c "$is_new" 2>/dev/null || packages+=(python3-venv)
    add_step "$PYTHON_DIR/complete" install_python_tools
fi
provide
for client in go java typescript; do
    "client-sdk/$client/setup.sh"
done
deploy/helm/setup.sh
go="$(client-sdk/go/setup.sh path)/go"
add_folder "$GRPCURL_DIR" bin/grpcurl \
    "GOBIN=\"\$NEW/bin\" GOTOOLCHAIN=local '$go' install 'github.com/fullstorydev/grpcurl/cmd/grpcurl@v$GRPCURL_VERSION'"
provide
