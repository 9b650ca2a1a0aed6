#!/usr/bin/env bash
# Checks the formatting, the types, the documentation and the package. With --fix it corrects the formatting instead.
set -euo pipefail
cd "$(dirname "$0")"
./setup.sh
if [[ "${1:-}" == --fix ]]; then
    mvn -o -B -ntp -q spotless:apply
    exit 0
fi
mvn -o -B -ntp -q spotless:check
# All warnings of the compiler and of javadoc are errors.
mvn -o -B -ntp -q package -DskipTests
