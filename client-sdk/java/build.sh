#!/usr/bin/env bash
# Builds the library and the probe of the suite. It does nothing if nothing has changed.
set -euo pipefail
cd "$(dirname "$0")"
if [[ target/probe.jsa -nt pom.xml && -z "$(find src ../../proto/leasehold build.sh -newer target/probe.jsa -print -quit)" ]]; then
    exit 0
fi
./setup.sh
mvn -o -B -ntp -q package -DskipTests -Dmaven.javadoc.skip -Dmaven.source.skip \
    dependency:build-classpath -Dmdep.outputFile=target/dependencies
# Java archives classes only if they are loaded from jars.
jar --create --file target/probe.jar -C target/test-classes dev/leasehold/probe
printf '%s:%s:%s' "$PWD/target/probe.jar" "$PWD/target/leasehold-client-0.1.0.jar" "$(<target/dependencies)" >target/classpath
rm -f target/probe.jsa
# A start without a broker loads the classes that every start loads, and writes them to the archive.
LEASEHOLD_ENDPOINTS=http://127.0.0.1:9 java -XX:ArchiveClassesAtExit=target/probe.jsa -Xlog:disable \
    -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp "$(<target/classpath)" dev.leasehold.probe.Probe >target/probe.log 2>&1 || true
test -f target/probe.jsa
