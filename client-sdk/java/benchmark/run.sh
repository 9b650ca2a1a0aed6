#!/usr/bin/env bash
# Measures pairs of acquire and release beside Redisson on the same Redis, in alternating rounds, and prints tables.
#     benchmark/run.sh --rounds 5 --seconds 3
# LEASEHOLD_SERVER names the broker. Only figures of a release build on an idle machine are meaningful.
set -euo pipefail
cd "$(dirname "$0")/.."
./build.sh
out=target/benchmark
mkdir -p "$out/classes"
mvn -o -B -ntp -q -f benchmark/pom.xml dependency:build-classpath -Dmdep.outputFile="$PWD/$out/classpath"
classpath="$(<target/classpath):target/test-classes:$(<"$out/classpath")"
javac -d "$out/classes" -cp "$classpath" benchmark/src/dev/leasehold/benchmark/*.java
exec java -cp "$out/classes:$classpath" dev.leasehold.benchmark.Benchmark "$@"
