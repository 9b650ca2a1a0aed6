#!/usr/bin/env bash
# Generates the stubs of the API into the package, or with another folder as argument there. The compiler of
# protos and gRPC's plugin are Maven artifacts, of the versions in pom.xml.
set -euo pipefail
cd "$(dirname "$0")"
out="$(mkdir -p "${1:-src/main/java}" && cd "${1:-src/main/java}" && pwd)"
protos=../../proto

version() {
    sed -n "s|.*<$1.version>\(.*\)</$1.version>.*|\1|p" pom.xml
}
# The path of an artifact's file.
artifact() {
    local group="$1" name="$2" version="$3" kind="$4" suffix="$5"
    local path="$PWD/target/tools/$name-$version$suffix"
    if [[ ! -f "$path" ]]; then
        mvn -o -B -ntp -q dependency:copy -Dartifact="$group:$name:$version:$kind" -DoutputDirectory=target/tools >&2
        chmod +x "$path"
    fi
    echo "$path"
}
protobuf="$(version protobuf)"
protoc="$(artifact com.google.protobuf protoc "$protobuf" exe:linux-x86_64 -linux-x86_64.exe)"
plugin="$(artifact io.grpc protoc-gen-grpc-java "$(version grpc)" exe:linux-x86_64 -linux-x86_64.exe)"
# Google's own protos are in the runtime's jar.
runtime="$(artifact com.google.protobuf protobuf-java "$protobuf" jar .jar)"
included="target/tools/protos-$protobuf"
if [[ ! -d "$included" ]]; then
    mkdir -p "$included"
    (cd "$included" && jar xf "$runtime" google/protobuf)
fi
rm -rf "$out/dev/leasehold/v1"
(cd "$protos" && find leasehold -name '*.proto' | sort) | xargs "$protoc" -I"$protos" -I"$included" --java_out="$out" \
    --plugin=protoc-gen-grpc-java="$plugin" --grpc-java_out="@generated=omit:$out"
