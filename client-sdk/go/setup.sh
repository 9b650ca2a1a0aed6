#!/usr/bin/env bash
# Installs what builds, tests and checks of the Go client need in addition to scripts/setup.sh: Go and its modules.
# Missing packages are installed as root on Debian; on other systems the script prints one line to paste and exits 2.
# With the argument `path` it installs nothing, and prints the folder of the `go` to use.
set -euo pipefail
cd "$(dirname "$0")"
source ../../scripts/provide.sh

readonly GO_NEEDED=1.26.0 GO_VERSION=1.26.8
readonly GO_DIR="$CACHE/go-$GO_VERSION"
# The marker file is beside the modules, because another cache may be in use, or the modules may be removed.
GO_PATH="${GOPATH:-$HOME/go}"
MODULES="${GOMODCACHE:-${GO_PATH%%:*}/pkg/mod}/cache/leasehold-$(cat go.sum tools/go.sum benchmark/go.sum | cksum | cut -d' ' -f1)"
readonly MODULES
case "$(uname -m)" in
    aarch64 | arm64) arch=arm64 ;;
    *) arch=amd64 ;;
esac
readonly TOOLCHAIN="golang.org/toolchain@v0.0.1-go$GO_VERSION.$(uname -s | tr '[:upper:]' '[:lower:]')-$arch"

# Runs outside of a module, so that an older Go does not download a newer toolchain.
go_is_new() {
    local version
    version="$(cd / && GOTOOLCHAIN=local go env GOVERSION 2>/dev/null)" || return 1
    [[ "$(printf '%s\n' "$GO_NEEDED" "${version#go}" | sort -V | head -1)" == "$GO_NEEDED" ]]
}
go_path() {
    if go_is_new; then
        dirname "$(command -v go)"
    else
        echo "$GO_DIR/bin"
    fi
}

if [[ "${1:-}" == path ]]; then
    if ! go_is_new && [[ ! -x "$GO_DIR/bin/go" ]]; then
        echo "Go $GO_NEEDED or newer is missing. Run: client-sdk/go/setup.sh" >&2
        exit 2
    fi
    go_path
    exit 0
fi

# The race detector needs a C compiler.
command -v gcc >/dev/null || packages+=(gcc libc6-dev)
if ! go_is_new && [[ ! -x "$GO_DIR/bin/go" ]]; then
    # Any version of Go can download a newer one from the module registry. Files of modules are never executable.
    command -v go >/dev/null || packages+=(golang-go)
    add_folder "$GO_DIR" bin/go "cd /; export GOTOOLCHAIN=local GOFLAGS=; go mod download $TOOLCHAIN; \
cp -r \"\$(go env GOMODCACHE)/$TOOLCHAIN/.\" \"\$NEW\"; chmod -R u+w \"\$NEW\"; chmod +x \"\$NEW\"/bin/* \"\$NEW\"/pkg/tool/*/*"
fi
download_modules() {
    PATH="$(go_path):$PATH"
    for module in . tools benchmark; do
        (cd "$module" && go mod download)
    done
    mkdir -p "$(dirname "$MODULES")"
    touch "$MODULES"
}
add_step "$MODULES" download_modules
provide
