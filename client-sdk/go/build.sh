#!/usr/bin/env bash
# Builds the library and the probe of the suite.
set -euo pipefail
cd "$(dirname "$0")"
PATH="$(./setup.sh path):$PATH"
go build ./...
go build -o bin/probe ./internal/probe
