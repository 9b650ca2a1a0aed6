#!/usr/bin/env bash
# Installs a JDK, Maven and all artifacts of the build, so that everything else works without a network. Missing
# packages are installed as root on Debian; on other systems the script prints one line to paste and exits 2.
set -euo pipefail
cd "$(dirname "$0")"
source ../../scripts/provide.sh

# The name of this marker file depends on the dependencies. It is in Maven's repository, because another repository may
# be in use, or the artifacts may be removed. Maven determines its folder from Java's user.home, which HOME does not
# change.
user_home="$(java -XshowSettings:properties -version 2>&1 | sed -n 's/^ *user.home = //p' || true)"
DONE="${user_home:-$HOME}/.m2/repository/.leasehold-$(cat pom.xml benchmark/pom.xml setup.sh | cksum | cut -d' ' -f1)"
readonly DONE

# The plugin that generates the stubs does not detect another version of the generators.
[[ ! pom.xml -nt target ]] || rm -rf target

[[ "$(javac -version 2>&1)" =~ ^javac\ ([0-9]+) ]] && ((BASH_REMATCH[1] >= 17)) || packages+=(openjdk-17-jdk-headless)
command -v mvn >/dev/null || packages+=(maven)
# Downloads everything that the real build needs, by building a minimal project with the same pom.xml: the plugins,
# their dependencies, and the generators of the stubs.
download_artifacts() {
    local minimal client
    minimal="$(mktemp -d)"
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
    rm -rf "$minimal"
    mkdir -p "$(dirname "$DONE")"
    touch "$DONE"
}
add_step "$DONE" download_artifacts
provide
