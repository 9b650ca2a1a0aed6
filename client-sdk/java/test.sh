#!/usr/bin/env bash
# Runs the tests of the Java client against real brokers: all on the standard Java, and those for virtual threads on the
# newest installed Java, if it supports virtual threads. LEASEHOLD_SERVER names the broker's binary. With names, as in
# the lines FAILED of the output, it runs only these tests:
#     client-sdk/java/test.sh CallsTest "LockModesTest#method"
# The last line is `N passed, N failed`.
set -euo pipefail
cd "$(dirname "$0")"
root="$PWD/../.."
reports="$root/target/reports/java"
trap 'exec "$root/scripts/count_tests.py" $? "$reports"' EXIT
rm -rf "$reports"
./setup.sh
# Each of the two runs may have none of the named tests.
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
# There is one carrier thread, so a virtual thread that blocks it while waiting would stop all others.
mvn -o -B -ntp -q surefire:test -Dgroups=virtual-threads "-Dtest.reports=$reports/virtual-threads" "${options[@]}" -Djvm="$newest" \
    -Dtest.jvm="-Djdk.virtualThreadScheduler.parallelism=1 -Djdk.virtualThreadScheduler.maxPoolSize=1" || status=$?
exit "$status"
