#!/usr/bin/env bash
# Makes sure that a JDK, Maven and all artifacts of the build are there; then everything else works without a network.
# As root on Debian it installs what is missing; anywhere else it prints one line to paste and exits 2.
set -euo pipefail
cd "$(dirname "$0")"
source ../../scripts/provide.sh

# A change of the dependencies is another file.
DONE="$CACHE/java-$(cat pom.xml benchmark/pom.xml setup.sh | cksum | cut -d' ' -f1)"
readonly DONE
readonly REPOSITORY="$HOME/.m2/repository/io/grpc"

[[ "$(javac -version 2>&1)" =~ ^javac\ ([0-9]+) ]] && ((BASH_REMATCH[1] >= 17)) || packages+=(openjdk-17-jdk-headless)
command -v mvn >/dev/null || packages+=(maven)
provide
if [[ -e $DONE && -d $REPOSITORY ]]; then
    exit 0
fi

# A build of next to nothing fetches what every build needs, plugins and their parts included.
nothing="$(mktemp -d)"
trap 'rm -rf "$nothing"' EXIT
mkdir -p "$nothing"/{benchmark,src/{main,test}/java/dev/leasehold/v1}
cp pom.xml "$nothing"
cp benchmark/pom.xml "$nothing/benchmark"
printf 'package dev.leasehold;\n\n/** Nothing. */\npublic final class Nothing {\n    private Nothing() {}\n}\n' \
    >"$nothing/src/main/java/dev/leasehold/Nothing.java"
printf 'package dev.leasehold.v1;\n\nclass Nothing {}\n' >"$nothing/src/main/java/dev/leasehold/v1/Nothing.java"
printf 'package dev.leasehold;\n\nimport org.junit.jupiter.api.Test;\n\nclass NothingTest {\n    @Test\n    void nothing() {}\n}\n' \
    >"$nothing/src/test/java/dev/leasehold/NothingTest.java"
version() {
    sed -n "s|.*<$1.version>\(.*\)</$1.version>.*|\1|p" pom.xml
}
(
    cd "$nothing"
    mvn -B -ntp -q package dependency:build-classpath -Dmdep.outputFile=target/classpath >&2
    mvn -B -ntp -q spotless:apply >&2
    mvn -B -ntp -q -f benchmark/pom.xml dependency:build-classpath -Dmdep.outputFile=target/classpath >&2
)
for tool in "com.google.protobuf:protoc:$(version protobuf):exe:linux-x86_64" \
    "io.grpc:protoc-gen-grpc-java:$(version grpc):exe:linux-x86_64" "com.google.protobuf:protobuf-java:$(version protobuf):jar"; do
    mvn -B -ntp -q dependency:copy -Dartifact="$tool" -DoutputDirectory="$nothing/tools" >&2
done
mkdir -p "$CACHE"
touch "$DONE"
