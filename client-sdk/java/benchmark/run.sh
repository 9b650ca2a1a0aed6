#!/usr/bin/env bash
# Takes and gives back locks beside Redisson's on the same Redis, in turns; prints tables.
#     benchmark/run.sh --rounds 5 --seconds 3
# LEASEHOLD_SERVER names the broker; a figure is worth something only of a release build on a quiet machine.
set -euo pipefail
cd "$(dirname "$0")/.."
./build.sh
out=target/benchmark
mkdir -p "$out/classes"
mvn -o -B -ntp -q -f benchmark/pom.xml dependency:build-classpath -Dmdep.outputFile="$PWD/$out/classpath"
classpath="$(<target/classpath):target/test-classes:$(<"$out/classpath")"
javac -d "$out/classes" -cp "$classpath" benchmark/src/dev/leasehold/benchmark/*.java
exec java -cp "$out/classes:$classpath" dev.leasehold.benchmark.Benchmark "$@"
