#!/usr/bin/env bash
# Installs what tests of the chart need in addition to scripts/setup.sh: Helm 3 and 4, the schemas of custom resources,
# and Python with a validator for the schemas of Kubernetes. Missing packages are installed as root on Debian; on other
# systems the script prints one line to paste and exits 2. With the argument `path` it installs nothing, and prints the
# folder of the tools.
set -euo pipefail
cd "$(dirname "$0")"
source ../../scripts/provide.sh

readonly HELM_3=3.22.0 HELM_4=4.3.1
# The modules that define custom resources, and the files of the resources that the chart uses. gateway-api 1.7 needs a
# newer Go.
readonly CRDS=(
    "github.com/prometheus-operator/prometheus-operator@v0.85.0 example/prometheus-operator-crd/monitoring.coreos.com_{podmonitors,prometheusrules,servicemonitors}.yaml"
    "sigs.k8s.io/gateway-api@v1.6.3 config/crd/standard/gateway.networking.k8s.io_{backendtlspolicies,grpcroutes}.yaml"
    "github.com/cert-manager/cert-manager@v1.21.2 deploy/crds/cert-manager.io_certificates.yaml"
)
# The name of the folder depends on the versions.
DIR="$CACHE/helm-$(cat setup.sh tests/requirements.txt | cksum | cut -d' ' -f1)"
readonly DIR

if [[ "${1:-}" == path ]]; then
    if [[ ! -e "$DIR/complete" ]]; then
        echo "What tests the chart is missing. Run: deploy/helm/setup.sh" >&2
        exit 2
    fi
    echo "$DIR"
    exit 0
fi

if [[ ! -e "$DIR/complete" ]]; then
    is_new='import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))'
    python3 -c "$is_new" 2>/dev/null || packages+=(python3-venv)
fi
install_tools() {
    local go version major crd module files
    go="$(../../client-sdk/go/setup.sh path)/go"
    rm -rf "$DIR"
    mkdir -p "$DIR/crds"
    for version in "$HELM_3" "$HELM_4"; do
        major="${version%%.*}"
        (cd / && GOBIN="$DIR/helm-$major" GOTOOLCHAIN=local "$go" install "helm.sh/helm/v$major/cmd/helm@v$version")
    done
    for crd in "${CRDS[@]}"; do
        read -r module files <<<"$crd"
        (cd / && GOTOOLCHAIN=local GOFLAGS='' "$go" mod download "$module")
        # $files is a brace pattern, which only eval expands.
        eval "cp \"$("$go" env GOMODCACHE)/$module/\"$files '$DIR/crds'"
    done
    # Files of modules are read-only.
    chmod -R u+w "$DIR/crds"
    python3 -m venv "$DIR/python"
    "$DIR/python/bin/pip" install -q --disable-pip-version-check --no-deps -r tests/requirements.txt
    touch "$DIR/complete"
}
add_step "$DIR/complete" install_tools
provide
