#!/usr/bin/env bash
# Runs the tests of the Java client against real brokers: on the standard Java, and those for virtual threads on the
# newest one that is there, if it has them. LEASEHOLD_SERVER names the broker's binary. With names, as the lines FAILED
# print them, those tests alone:
#     client-sdk/java/test.sh CallsTest "KindsTest#method"
# The last line is `N passed, N failed`.
set -euo pipefail
cd "$(dirname "$0")"
root="$PWD/../.."
reports="$root/target/reports/java"
trap 'exec "$root/scripts/count_tests.py" $? "$reports"' EXIT
rm -rf "$reports"
./setup.sh
# Either run may have none of the tests that are named.
chosen="$(IFS=, && echo "$*")"
options=(-Dsurefire.failIfNoSpecifiedTests=false ${chosen:+"-Dtest=$chosen"})
status=0
mvn -o -B -ntp -q test -DexcludedGroups=virtual-threads "-Dtest.reports=$reports/standard" "${options[@]}" || status=$?

newest=
for java in /usr/lib/jvm/*/bin/java; do
    version="$("$java" -XshowSettings:properties -version 2>&1 | sed -n 's/^ *java.specification.version = //p')"
    if [[ $version =~ ^[0-9]+$ ]] && ((version >= 21 && version > ${newest_version:-0})); then
        newest="$java" newest_version="$version"
    fi
done
if [[ -z $newest ]]; then
    echo "No Java with virtual threads is here (21 or newer): their tests were left out" >&2
    exit "$status"
fi
# One carrier: whoever would keep it while it waits would stop all others.
mvn -o -B -ntp -q surefire:test -Dgroups=virtual-threads "-Dtest.reports=$reports/virtual-threads" "${options[@]}" -Djvm="$newest" \
    -Dtest.jvm="-Djdk.virtualThreadScheduler.parallelism=1 -Djdk.virtualThreadScheduler.maxPoolSize=1" || status=$?
exit "$status"
