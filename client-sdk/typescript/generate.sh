#!/usr/bin/env bash
# Generates the stubs of the API, and of the details of a refused unary call, into the sources, or with another
# folder as argument there.
set -euo pipefail
cd "$(dirname "$0")"
out="${1:-src/gen}"
protos="$PWD/../../proto"
google="$PWD/node_modules/google-proto-files"
buf="$(../../scripts/setup.sh buf)/buf"
PATH="$(./setup.sh node):$PATH"
rm -rf "$out"
mkdir -p "$out"
out="$(cd "$out" && pwd)"

# $1: where the files are; the others: which of them.
generate() {
    local input="$1" paths=() plugin
    shift
    for path in "$@"; do
        paths+=(--path "$input/$path")
    done
    local options="env=node,esModuleInterop=true,importSuffix=.js,forceLong=number,oneof=unions-value"
    options+=",useOptionals=messages,useExactTypes=false,removeEnumPrefix=true,outputJsonMethods=false"
    options+=",exportCommonSymbols=false,outputServices=$services"
    plugin="{local: node_modules/.bin/protoc-gen-ts_proto, out: '$out', opt: '$options'"
    plugin+=", include_imports: true, include_wkt: true}"
    "$buf" generate "$input" --template "{version: v2, plugins: [$plugin]}" "${paths[@]}"
}

services=grpc-js
mapfile -t own < <(cd "$protos" && find leasehold -name '*.proto' | sort)
generate "$protos" "${own[@]}"
services=none
generate "$google" google/rpc/status.proto google/rpc/error_details.proto
