"""Renders the chart, and finds objects in the result."""

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path

import yaml

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parents[2]
CHART = TESTS.parent / "leasehold"
IMAGE = TESTS / "image.yaml"
VALUES = {file.stem: file for file in sorted((TESTS / "values").glob("*.yaml"))}
TOOLS = Path(os.environ["CHART_TOOLS"])
HELMS = [TOOLS / "helm-3/helm", TOOLS / "helm-4/helm"]
SERVER = Path(os.environ["LEASEHOLD_SERVER"])
CLI = SERVER.with_name("leasehold")
KUBERNETES = "1.37.0"
RELEASE = "locks"
NAMESPACE = "apps"

Object = dict


class Loader(yaml.SafeLoader):
    """A loader that rejects duplicate keys, as Kubernetes does."""

    def construct_mapping(self, node, deep=False):
        """Reads a mapping. Raises an error if a key occurs twice."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"twice: {twice}", node.start_mark)
        return super().construct_mapping(node, deep)


def parsed(text: str) -> list[Object]:
    """Returns the objects of a YAML stream."""
    return [each for each in yaml.load_all(text, Loader) if each]


@functools.cache
def chart() -> Path:
    """Returns a copy of the chart with an empty chart in place of Valkey's, which is available in its registry only."""
    folder = Path(tempfile.mkdtemp(prefix="leasehold-chart-"))
    atexit.register(shutil.rmtree, folder)
    copy = folder / "leasehold"
    shutil.copytree(CHART, copy)
    needed = yaml.safe_load((CHART / "Chart.yaml").read_text())["dependencies"]
    for dependency in needed:
        stand_in = copy / "charts" / dependency["name"]
        stand_in.mkdir(parents=True)
        about = {"apiVersion": "v2", "name": dependency["name"], "version": dependency["version"]}
        (stand_in / "Chart.yaml").write_text(yaml.safe_dump(about))
    return copy


def helm(binary: Path, *args: str) -> subprocess.CompletedProcess:
    """Runs Helm with a temporary home folder, so that settings of the machine have no effect."""
    env = {"HOME": str(chart().parent), "PATH": os.environ["PATH"]}
    return subprocess.run([binary, *args], env=env, capture_output=True, text=True, timeout=60)


def template(values: list[Path], *args: str, binary: Path = HELMS[1]) -> subprocess.CompletedProcess:
    """Runs `helm template` as at an installation, with the image of all cases."""
    files = [part for file in [IMAGE, *values] for part in ("--values", str(file))]
    options = ["--namespace", NAMESPACE, "--kube-version", KUBERNETES]
    return helm(binary, "template", RELEASE, str(chart()), *options, *files, *args)


@functools.cache
def rendered(case: str, binary: Path = HELMS[1], *args: str) -> list[Object]:
    """Returns all objects of a case, including hooks and tests."""
    done = template([VALUES[case]], *args, binary=binary)
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)


@functools.cache
def notes(case: str) -> str:
    """Returns the notes that an installation prints.

    Helm renders notes for a cluster only. The notes are therefore rendered as a ConfigMap.
    """
    copy = chart().with_name(f"notes-{case}")
    shutil.copytree(chart(), copy)
    (copy / "templates/NOTES.txt").rename(copy / "notes")
    shown = 'kind: ConfigMap\ndata:\n  notes: {{ tpl (.Files.Get "notes") . | quote }}\n'
    (copy / "templates/notes.yaml").write_text(shown)
    options = ["--namespace", NAMESPACE, "--kube-version", KUBERNETES, "--show-only", "templates/notes.yaml"]
    options += ["--values", str(IMAGE), "--values", str(VALUES[case])]
    done = helm(HELMS[1], "template", RELEASE, str(copy), *options)
    assert done.returncode == 0, done.stderr
    (shown,) = parsed(done.stdout)
    return shown["data"]["notes"]


def name(each: Object) -> str:
    """Returns the kind and the name of an object."""
    return f"{each['kind']}/{each['metadata']['name']}"


def only(objects: list[Object], kind: str, suffix: str = "") -> Object:
    """Returns the only object of a kind, except hooks, whose name ends with the suffix."""
    found = [
        each
        for each in objects
        if each["kind"] == kind and each["metadata"]["name"].endswith(suffix) and not hook(each)
    ]
    assert len(found) == 1, [name(each) for each in found]
    return found[0]


def of(case: str, kind: str, suffix: str = "") -> Object:
    """Returns the only object of a kind in a case; see `only`."""
    return only(rendered(case), kind, suffix)


def hook(each: Object) -> str | None:
    """Returns the hook annotation of an object, or None if Helm creates the object with the release."""
    return each["metadata"].get("annotations", {}).get("helm.sh/hook")


def pods(objects: list[Object]) -> list[tuple[str, Object, Object]]:
    """Returns the name, metadata and spec of each pod and each pod template."""
    found = []
    for each in objects:
        if each["kind"] == "Pod":
            found.append((name(each), each["metadata"], each["spec"]))
        elif each["kind"] in ("Deployment", "Job"):
            of_pod = each["spec"]["template"]
            found.append((name(each), of_pod["metadata"], of_pod["spec"]))
    return found


def settings(case: str) -> dict:
    """Returns the configuration that the brokers read."""
    maps = [each.get("data") for each in rendered(case) if each["kind"] == "ConfigMap" and not hook(each)]
    (text,) = [data["leasehold.toml"] for data in maps if data and "leasehold.toml" in data]
    return tomllib.loads(text)


def pod(case: str) -> Object:
    """Returns the spec of the brokers' pods."""
    return of(case, "Deployment")["spec"]["template"]["spec"]


def broker(case: str) -> Object:
    """Returns the container with the broker."""
    return next(each for each in pod(case)["containers"] if each["name"] == "broker")
