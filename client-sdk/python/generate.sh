#!/usr/bin/env bash
# Generates the stubs of the API into the package, or into the folder given as argument. An old version of the generator
# is used deliberately: its code runs with every protobuf runtime from 4.25 to 7.
set -euo pipefail
cd "$(dirname "$0")"
out="${1:-src}"
protos=../../proto
mkdir -p "$out/leasehold/v1"
(cd "$protos" && find leasehold -name '*.proto' | sort) | xargs "${PYTHON:-python3}" -W ignore -m grpc_tools.protoc -I"$protos" \
    --python_out="$out" --pyi_out="$out" --grpc_python_out="$out"
echo '"""Generated from the files in proto/leasehold/v1 by generate.sh; not to be changed by hand."""' >"$out/leasehold/v1/__init__.py"
