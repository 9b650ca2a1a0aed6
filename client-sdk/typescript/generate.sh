#!/usr/bin/env bash
# Generates src/gen: the stubs of the API, and of the error details of rejected unary calls. build.sh calls this script
# when the stubs are missing or out of date.
set -euo pipefail
cd "$(dirname "$0")"
protos="$PWD/../../proto"
google="$PWD/node_modules/google-proto-files"
buf=node_modules/.bin/buf
PATH="$(./setup.sh node):$PATH"
# An interrupted run leaves no incomplete src/gen.
out="$PWD/build/gen"
rm -rf "$out"
mkdir -p "$out"

# $1: the folder of the .proto files; further arguments: the files to generate from.
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
rm -rf src/gen
mv "$out" src/gen
