#!/usr/bin/env python3
"""Prints what an image is made of, as SPDX 2.3: sbom.py ROOT.

That is every file under the root, the crates that Cargo links into the programs, the Rust standard library, and the
Debian packages that the libraries and the certificates of authorities come from.
"""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PROGRAMS = {"leasehold-server": "usr/local/bin/leasehold-server", "leasehold-cli": "usr/local/bin/leasehold"}
# Written by root.sh itself.
OWN_FILES = {"etc/passwd", "etc/group"}
# A script of the package puts it together, so that dpkg does not know whose it is.
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
SBOM = "usr/share/sbom/leasehold.spdx.json"

Element = dict


def said_by(*command: str) -> str:
    """Returns what a command prints."""
    return subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, text=True).stdout


def linked_crates() -> list[dict]:
    """Returns the crates that the programs need to run; not those that only build or test them."""
    asked = ["cargo", "metadata", "--locked", "--format-version=1", "--filter-platform", rust("host")]
    metadata = json.loads(said_by(*asked))
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
    return list(found.values())


def rust(what: str) -> str:
    """Returns a line of the compiler's version: `host` or `release`."""
    lines = said_by("rustc", "--version", "--verbose").splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{what}:"))


def debian_package(path: str) -> dict[str, str]:
    """Returns name, version and architecture of the package that a file of this machine comes from."""
    names = ["ca-certificates"] if path == CERTIFICATES else owners(Path("/") / path)
    if len(names) != 1:
        sys.exit(f"sbom.py: /{path} is of no Debian package, so that the SBOM cannot say what it is")
    form = "${Package}\t${Version}\t${Architecture}\n"
    name, version, architecture = said_by("dpkg-query", "--show", "--showformat", form, names[0]).strip().split("\t")
    return {"name": name, "version": version, "architecture": architecture}


def owners(path: Path) -> list[str]:
    """Returns the packages that have a file. Where /lib is a link to /usr/lib, dpkg knows only one of the two paths."""
    real = str(path.resolve())
    for each in dict.fromkeys([str(path), real, real.removeprefix("/usr"), f"/usr{path}"]):
        asked = subprocess.run(["dpkg-query", "--search", each], capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            return sorted({line.rsplit(": ", 1)[0] for line in asked.stdout.splitlines()})
    return []


def distribution() -> str:
    """Returns this machine's distribution and version, such as debian-12."""
    lines = Path("/etc/os-release").read_text().splitlines()
    fields = {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}
    return f"{fields['ID']}-{fields.get('VERSION_ID', 'unknown')}"


def spdx_id(*parts: str) -> str:
    """Returns an identifier of the letters that SPDX allows."""
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", "-".join(parts))


def package(kind: str, name: str, version: str, purl: str, **known: str) -> Element:
    """Returns a package in the words of SPDX."""
    return {
        "SPDXID": spdx_id(kind, name, version),
        "name": name,
        "versionInfo": version,
        "downloadLocation": known.get("source", "NOASSERTION"),
        "licenseDeclared": known.get("license", "NOASSERTION"),
        "licenseConcluded": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "filesAnalyzed": False,
        "externalRefs": [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl},
        ],
    }


def crate(metadata: dict) -> Element:
    """Returns a crate as a package."""
    name, version = metadata["name"], metadata["version"]
    known = {}
    if metadata["source"] is not None:
        known["source"] = metadata["source"].replace("registry+", "")
    if metadata["license"]:
        known["license"] = metadata["license"].replace("/", " OR ")
    return package("crate", name, version, f"pkg:cargo/{name}@{version}", **known)


def debian(found: dict[str, str]) -> Element:
    """Returns a Debian package as one of SPDX."""
    vendor, version = distribution().split("-")[0], found["version"].replace("+", "%2B").replace("~", "%7E")
    purl = f"pkg:deb/{vendor}/{found['name']}@{version}?arch={found['architecture']}&distro={distribution()}"
    return package("deb", found["name"], found["version"], purl)


def file_element(root: Path, path: str) -> Element:
    """Returns a file in the words of SPDX, which asks for a SHA-1."""
    content = (root / path).read_bytes()
    return {
        "SPDXID": spdx_id("file", path),
        "fileName": f"./{path}",
        "checksums": [
            {"algorithm": "SHA1", "checksumValue": hashlib.sha1(content, usedforsecurity=False).hexdigest()},
            {"algorithm": "SHA256", "checksumValue": hashlib.sha256(content).hexdigest()},
        ],
        "licenseConcluded": "NOASSERTION",
        "copyrightText": "NOASSERTION",
    }


def relationship(whole: Element, kind: str, part: Element) -> dict[str, str]:
    """Returns how two elements belong together."""
    return {"spdxElementId": whole["SPDXID"], "relationshipType": kind, "relatedSpdxElement": part["SPDXID"]}


def main() -> None:
    """Prints it."""
    root = Path(sys.argv[1])
    crates = {metadata["id"]: crate(metadata) for metadata in linked_crates()}
    packages = {each["SPDXID"]: each for each in crates.values()}
    programs = {path: each for each in crates.values() if (path := PROGRAMS.get(each["name"]))}
    release = rust("release")
    standard = package("rust", "std", release, f"pkg:generic/rust-std@{release}", license="MIT OR Apache-2.0")
    version = programs["usr/local/bin/leasehold-server"]["versionInfo"]
    image = package("image", "leasehold", version, f"pkg:generic/leasehold@{version}", license="Apache-2.0")
    packages |= {each["SPDXID"]: each for each in (standard, image)}

    files, relationships = [], []
    for path in sorted(str(each.relative_to(root)) for each in root.rglob("*") if each.is_file()):
        if path == SBOM:
            continue
        whole = image if path in OWN_FILES else programs.get(path) or debian(debian_package(path))
        packages.setdefault(whole["SPDXID"], whole)
        files.append(file_element(root, path))
        relationships.append(relationship(whole, "CONTAINS", files[-1]))
    ordered = [packages[key] for key in sorted(packages)]
    relationships += [relationship(image, "CONTAINS", each) for each in ordered if each is not image]
    made_of = hashlib.sha256(json.dumps([ordered, files, relationships]).encode()).hexdigest()
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": "leasehold",
        # The same for the same image: nothing here depends on when or where.
        "documentNamespace": f"https://github.com/leasehold/leasehold/sbom/{made_of}",
        "creationInfo": {"created": "1970-01-01T00:00:00Z", "creators": ["Tool: deploy/docker/sbom.py"]},
        "packages": ordered,
        "files": files,
        "relationships": [relationship({"SPDXID": "SPDXRef-DOCUMENT"}, "DESCRIBES", image), *relationships],
    }
    json.dump(document, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
