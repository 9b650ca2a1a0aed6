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

# The plugin that generates the stubs does not notice another version of the generators.
[[ ! pom.xml -nt target ]] || rm -rf target

[[ "$(javac -version 2>&1)" =~ ^javac\ ([0-9]+) ]] && ((BASH_REMATCH[1] >= 17)) || packages+=(openjdk-17-jdk-headless)
command -v mvn >/dev/null || packages+=(maven)
provide
if [[ -e $DONE && -d $REPOSITORY ]]; then
    exit 0
fi

# A build of a minimal project with the same pom.xml downloads everything that the real build needs: the plugins, their
# parts, and the generators of the stubs.
minimal="$(mktemp -d)"
trap 'rm -rf "$minimal"' EXIT
client="$minimal/client-sdk/java"
mkdir -p "$client"/{benchmark,src/{main,test}/java/dev/leasehold} "$minimal/proto"
cp pom.xml "$client"
cp benchmark/pom.xml "$client/benchmark"
printf 'syntax = "proto3";\npackage leasehold.v1;\noption java_package = "dev.leasehold.v1";\nmessage Nothing {}\n' \
    >"$minimal/proto/nothing.proto"
printf 'package dev.leasehold;\n\n/** Nothing. */\npublic final class Nothing {\n    private Nothing() {}\n}\n' \
    >"$client/src/main/java/dev/leasehold/Nothing.java"
printf 'package dev.leasehold;\n\nimport org.junit.jupiter.api.Test;\n\nclass NothingTest {\n    @Test\n    void nothing() {}\n}\n' \
    >"$client/src/test/java/dev/leasehold/NothingTest.java"
(
    cd "$client"
    mvn -B -ntp -q package dependency:build-classpath -Dmdep.outputFile=target/classpath >&2
    mvn -B -ntp -q spotless:apply >&2
    mvn -B -ntp -q -f benchmark/pom.xml dependency:build-classpath -Dmdep.outputFile=target/classpath >&2
)
mkdir -p "$CACHE"
touch "$DONE"
