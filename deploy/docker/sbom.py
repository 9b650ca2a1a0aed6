#!/usr/bin/env python3
"""Prints what the image's programs are made of, as SPDX 2.3: the crates that Cargo links into them."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ["leasehold-server", "leasehold-cli"]


def linked() -> dict[str, dict]:
    """The packages that the programs need to run, by id; not those that only build or test them."""
    asked = ["cargo", "metadata", "--locked", "--format-version=1", "--filter-platform", target()]
    metadata = json.loads(subprocess.run(asked, cwd=ROOT, check=True, capture_output=True).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    needs = {
        node["id"]: [each["pkg"] for each in node["deps"] if any(kind["kind"] is None for kind in each["dep_kinds"])]
        for node in metadata["resolve"]["nodes"]
    }
    open_ids = [key for key, package in packages.items() if package["name"] in PROGRAMS]
    found: dict[str, dict] = {}
    while open_ids:
        key = open_ids.pop()
        if key not in found:
            found[key] = packages[key]
            open_ids += needs[key]
    return found


def target() -> str:
    """What is built for."""
    said = subprocess.run(["rustc", "--version", "--verbose"], check=True, capture_output=True, text=True).stdout
    return next(line.split()[1] for line in said.splitlines() if line.startswith("host:"))


def described(package: dict) -> dict:
    """A package in the words of SPDX."""
    name, version = package["name"], package["version"]
    return {
        "SPDXID": f"SPDXRef-{name}-{version}".replace("_", "-").replace("+", "-"),
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION" if package["source"] is None else package["source"].replace("registry+", ""),
        "licenseDeclared": (package["license"] or "NOASSERTION").replace("/", " OR "),
        "licenseConcluded": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "filesAnalyzed": False,
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": f"pkg:cargo/{name}@{version}",
            }
        ],
    }


def main() -> None:
    """Prints it."""
    packages = sorted((described(package) for package in linked().values()), key=lambda each: each["SPDXID"])
    lock = hashlib.sha256((ROOT / "Cargo.lock").read_bytes()).hexdigest()
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": "leasehold",
        # The same for the same lock file: nothing here depends on when or where.
        "documentNamespace": f"https://github.com/leasehold/leasehold/sbom/{lock}",
        "creationInfo": {"created": "1970-01-01T00:00:00Z", "creators": ["Tool: deploy/docker/sbom.py"]},
        "packages": packages,
        "relationships": [
            {
                "spdxElementId": "SPDXRef-DOCUMENT",
                "relationshipType": "DESCRIBES",
                "relatedSpdxElement": each["SPDXID"],
            }
            for each in packages
        ],
    }
    json.dump(document, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
