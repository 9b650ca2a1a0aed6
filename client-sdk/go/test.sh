#!/usr/bin/env bash
# Runs the tests of the Go client with real brokers, under the race detector.
set -euo pipefail
cd "$(dirname "$0")"
PATH="$(./setup.sh path):$PATH"
# Tests mostly wait, so more of them than there are cores run at a time.
CGO_ENABLED=1 go test -race -count=1 -parallel "${GO_TEST_PARALLEL:-6}" ./...
