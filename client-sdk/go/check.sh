#!/usr/bin/env bash
# Checks the formatting of the Go client, that its stubs match the API, and that its modules are complete. With --fix it
# corrects what can be corrected instead.
set -euo pipefail
cd "$(dirname "$0")"
PATH="$(./setup.sh path):$PATH"

if [[ "${1:-}" == --fix ]]; then
    gofmt -w .
    ./generate.sh
    for module in . tools benchmark; do
        go -C "$module" mod tidy
    done
    exit 0
fi
unformatted="$(gofmt -l .)"
if [[ -n $unformatted ]]; then
    echo "Not formatted (client-sdk/go/check.sh --fix repairs it): $unformatted" >&2
    exit 1
fi
too_long="$(grep -rnE --include='*.go' --exclude-dir=gen '^.{121,}' . || true)"
if [[ -n $too_long ]]; then
    echo "Lines of more than 120 characters: $too_long" >&2
    exit 1
fi
generated="$(mktemp -d)"
trap 'rm -rf "$generated"' EXIT
./generate.sh "$generated"
diff -r gen "$generated/gen"
for module in . tools benchmark; do
    go -C "$module" mod tidy -diff
    go -C "$module" mod verify >/dev/null
done
staticcheck="$PWD/bin/staticcheck"
go build -modfile=tools/go.mod -o "$staticcheck" honnef.co/go/tools/cmd/staticcheck
for module in . benchmark; do
    go -C "$module" vet ./...
    (cd "$module" && "$staticcheck" ./...)
done
# The clock of other systems than Linux is not used on this machine, but must compile.
for system in darwin windows; do
    GOOS=$system go build . ./leaseholdtest
done
