#!/usr/bin/env bash
# Creates the root file system of the image: root.sh FOLDER-WITH-THE-PROGRAMS ROOT. The image contains only these files.
set -euo pipefail
mkdir -p "$2"/{etc/ssl/certs,usr/local/bin,usr/share/sbom,tmp}
PROGRAMS="$(realpath "$1")" ROOT="$(realpath "$2")"
readonly PROGRAMS ROOT
cd "$(dirname "$0")"

chmod 1777 "$ROOT/tmp"
for program in leasehold-server leasehold; do
    install -m 0755 "$PROGRAMS/$program" "$ROOT/usr/local/bin/$program"
    strip "$ROOT/usr/local/bin/$program"
    # Libraries are copied to the paths that the loader searches, and the loader to the path that is in the program.
    while read -r library; do
        mkdir -p "$ROOT$(dirname "$library")"
        install -m 0755 "$(realpath "$library")" "$ROOT$library"
    done < <(ldd "$PROGRAMS/$program" | grep -o '/[^ ]*')
done
install -m 0644 /etc/ssl/certs/ca-certificates.crt "$ROOT/etc/ssl/certs/"
echo 'leasehold:x:65532:65532:Leasehold:/:/sbin/nologin' >"$ROOT/etc/passwd"
echo 'leasehold:x:65532:' >"$ROOT/etc/group"
./sbom.py "$ROOT" >"$ROOT/usr/share/sbom/leasehold.spdx.json"
find "$ROOT" -exec touch --no-dereference --date=@0 {} +
