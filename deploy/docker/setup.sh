#!/usr/bin/env bash
# Makes sure that what builds the image without a daemon is there. As root on Debian it installs what is missing; anywhere
# else it prints one line to paste and exits 2.
set -euo pipefail
cd "$(dirname "$0")"
source ../../scripts/provide.sh

command -v buildah >/dev/null || packages+=(buildah)
command -v redis-server >/dev/null || packages+=(redis-server)
[[ -e /etc/ssl/certs/ca-certificates.crt ]] || packages+=(ca-certificates)
command -v strip >/dev/null || packages+=(binutils)
provide
