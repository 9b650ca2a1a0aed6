#!/usr/bin/env bash
# Installs what is needed to build the image without a daemon. Missing packages are installed as root on Debian; on
# other systems the script prints one line to paste and exits 2.
set -euo pipefail
cd "$(dirname "$0")"
source ../../scripts/provide.sh

command -v buildah >/dev/null || packages+=(buildah)
command -v redis-server >/dev/null || packages+=(redis-server)
[[ -e /etc/ssl/certs/ca-certificates.crt ]] || packages+=(ca-certificates)
command -v strip >/dev/null || packages+=(binutils)
provide
