"""Writes the files that a pod mounts into a folder, and builds the command that runs its container on this machine."""

import contextlib
import re
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import chart

# Contents of secrets that are not part of the chart. The broker can read each file.
TOKENS = "ci " + "0" * 64 + "\n"
POLICY = '[[rule]]\ncallers = ["token:ci"]\nverbs = ["acquire", "observe"]\n'


def content(key: str, certificates: Path) -> str:
    """Returns the content of a key of a secret."""
    made = {"tls.crt": "server.pem", "tls.key": "server.key", "ca.crt": "ca.pem"}
    if key in made:
        return (certificates / made[key]).read_text()
    texts = {"tokens": TOKENS, "policy.toml": POLICY, "deployment-key": secrets.token_hex(32)}
    return texts.get(key, "a-word\n")


def lay_out(objects: list[chart.Object], spec: chart.Object, root: Path, certificates: Path) -> None:
    """Writes every file that the first container mounts, under the root."""
    maps = {each["metadata"]["name"]: each.get("data", {}) for each in objects if each["kind"] == "ConfigMap"}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    for mount in spec["containers"][0]["volumeMounts"]:
        folder = root / mount["mountPath"].lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        volume = volumes[mount["name"]]
        if "configMap" in volume:
            for key, text in maps[volume["configMap"]["name"]].items():
                (folder / key).write_text(text.replace("/etc/leasehold/", f"{root}/etc/leasehold/"))
        if mount["name"] == "probe":
            for key in ("tls.crt", "tls.key", "ca.crt"):
                (folder / key).write_text(content(key, certificates))
        for item in volume.get("secret", {}).get("items", []):
            file = folder / item["path"]
            file.write_text(content(item["key"], certificates))
            file.chmod(0o440)


def command(container: chart.Object, root: Path) -> list[str]:
    """Returns the container's command with the programs and paths of this machine."""
    binary = chart.SERVER.with_name(Path(container["command"][0]).name)
    rest = [*container["command"][1:], *container["args"]]
    return [str(binary), *(part.replace("/etc/leasehold/", f"{root}/etc/leasehold/") for part in rest)]


@contextlib.contextmanager
def served(command: list[str], log: Path) -> Iterator[tuple[int, int]]:
    """Runs a broker, and yields the ports of its API and of its admin listener."""
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as broker,
    ):
        ports = {}
        for line in broker.stdout:
            if found := re.search(r"(admin )?listening on \S+:(\d+)", line):
                ports[bool(found[1])] = int(found[2])
            if len(ports) == 2:
                break
        assert len(ports) == 2, log.read_text()
        try:
            yield ports[False], ports[True]
        finally:
            broker.terminate()
        assert broker.wait(timeout=30) == 0, log.read_text()
