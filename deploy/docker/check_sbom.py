#!/usr/bin/env python3
"""Fails unless an image's SBOM names what is in it: check_sbom.py ROOT."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(sys.argv[1])
SBOM = ROOT / "usr/share/sbom/leasehold.spdx.json"


def version_of(package: str) -> str:
    """Returns the version of a package of this machine."""
    asked = ["dpkg-query", "--show", "--showformat", "${Version}\n", package]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.splitlines()[0]


document = json.loads(SBOM.read_text())
packages = {each["SPDXID"]: each for each in document["packages"]}
files = {each["SPDXID"]: each for each in document["files"]}
elements = {"SPDXRef-DOCUMENT", *packages, *files}
assert len(elements) == 1 + len(document["packages"]) + len(document["files"]), "an identifier is there twice"

# Every file, as it is.
there = {
    f"./{each.relative_to(ROOT)}": hashlib.sha256(each.read_bytes()).hexdigest()
    for each in ROOT.rglob("*")
    if each.is_file() and each != SBOM
}
named = {
    each["fileName"]: next(sum["checksumValue"] for sum in each["checksums"] if sum["algorithm"] == "SHA256")
    for each in files.values()
}
assert named == there, set(named.items()) ^ set(there.items())

# Every file and package is a part of the image.
parts: dict[str, list[str]] = {}
for each in document["relationships"]:
    assert {each["spdxElementId"], each["relatedSpdxElement"]} <= elements, each
    parts.setdefault(each["spdxElementId"], []).append(each["relatedSpdxElement"])
(image,) = parts["SPDXRef-DOCUMENT"]
assert set(parts[image]) >= set(packages) - {image}
assert {part for whole in parts for part in parts[whole]} >= set(files)

# The libraries and the certificates, by the packages of this machine.
origins = {
    files[part]["fileName"].rsplit("/", 1)[-1]: packages[whole]
    for whole, all_parts in parts.items()
    for part in all_parts
    if part in files
}
for name, package in [
    ("libc.so.6", "libc6"),
    ("libgcc_s.so.1", "libgcc-s1"),
    ("ca-certificates.crt", "ca-certificates"),
]:
    origin = origins[name]
    assert (origin["name"], origin["versionInfo"]) == (package, version_of(package)), origin
    assert origin["externalRefs"][0]["referenceLocator"].startswith("pkg:deb/"), origin
for name in ("leasehold", "leasehold-server"):
    assert origins[name]["externalRefs"][0]["referenceLocator"].startswith("pkg:cargo/leasehold-"), origins[name]

# The crates.
crates = {
    (each["name"], each["versionInfo"]) for each in packages.values() if each["SPDXID"].startswith("SPDXRef-crate-")
}
tree = ["cargo", "tree", "--locked", "--edges=normal", "--prefix=none", "--format={p}", "--no-dedupe"]
told = subprocess.run([*tree, "-p=leasehold-server", "-p=leasehold-cli"], check=True, capture_output=True, text=True)
linked = {tuple(line.split()[:2]) for line in told.stdout.splitlines() if line}
linked = {(name, version.removeprefix("v")) for name, version in linked}
assert linked <= crates, linked - crates
others = len(packages) - len(crates)
print(f"SBOM: {len(files)} files, {len(crates)} crates ({len(linked)} linked on this machine), {others} other packages")
