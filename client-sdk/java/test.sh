#!/usr/bin/env bash
# Runs the tests of the Java client against real brokers: on the standard Java, and those for virtual threads on the
# newest one that is there, if it has them. LEASEHOLD_SERVER names the broker's binary.
set -euo pipefail
cd "$(dirname "$0")"
./setup.sh
mvn -o -B -ntp -q test -DexcludedGroups=virtual-threads "$@"

newest=
for java in /usr/lib/jvm/*/bin/java; do
    version="$("$java" -XshowSettings:properties -version 2>&1 | sed -n 's/^ *java.specification.version = //p')"
    if [[ $version =~ ^[0-9]+$ ]] && ((version >= 21 && version > ${newest_version:-0})); then
        newest="$java" newest_version="$version"
    fi
done
if [[ -z $newest ]]; then
    echo "No Java with virtual threads is here (21 or newer): their tests were left out" >&2
    exit 0
fi
# One carrier: whoever would keep it while it waits would stop all others.
mvn -o -B -ntp -q surefire:test -Dgroups=virtual-threads -Djvm="$newest" \
    -Dtest.jvm="-Djdk.virtualThreadScheduler.parallelism=1 -Djdk.virtualThreadScheduler.maxPoolSize=1"
