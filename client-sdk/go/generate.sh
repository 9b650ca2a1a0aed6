#!/usr/bin/env bash
# Generates the stubs of the API into gen, or into the folder given as argument.
set -euo pipefail
cd "$(dirname "$0")"
PATH="$(./setup.sh path):$PATH"
buf="$(../../scripts/setup.sh buf)/buf"
"$buf" generate ../../proto --output "${1:-.}"
