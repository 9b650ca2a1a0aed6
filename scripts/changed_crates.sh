#!/usr/bin/env bash
# Prints `--package NAME` for each crate that has changed since the branch left main, including uncommitted changes.
set -euo pipefail
cd "$(dirname "$0")/.."

base="$(git merge-base HEAD main 2>/dev/null || git rev-parse HEAD)"
{
    git diff --name-only "$base"
    git ls-files --others --exclude-standard
} | while read -r file; do
    folder="$(dirname "$file")"
    until [[ -f "$folder/Cargo.toml" || "$folder" == . ]]; do folder="$(dirname "$folder")"; done
    sed -n '/^\[package\]/,/^\[/s/^name = "\(.*\)"/--package \1/p' "$folder/Cargo.toml"
done | sort -u
