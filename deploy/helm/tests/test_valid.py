"""Tests that Kubernetes accepts the objects of all cases, rendered by Helm 3 and by Helm 4."""

import json

import chart
import jsonschema
import kubernetes_validate
import pytest
import yaml

MINORS = ["1.35", "1.36", "1.37"]


class Definitions(yaml.SafeLoader):
    """A loader that reads a single = as text, as Kubernetes does."""


Definitions.add_constructor("tag:yaml.org,2002:value", yaml.SafeLoader.construct_yaml_str)


def definitions() -> dict[tuple[str, str], dict]:
    """Returns the schemas of custom resources, by apiVersion and kind."""
    found = {}
    for file in (chart.TOOLS / "crds").glob("*.yaml"):
        for each in yaml.load_all(file.read_text(), Definitions):
            if not each or each["kind"] != "CustomResourceDefinition":
                continue
            spec = each["spec"]
            for version in spec["versions"]:
                schema = closed(version["schema"]["openAPIV3Schema"])
                found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return found


def closed(schema: object) -> object:
    """Returns the schema with unknown fields forbidden, as the API server does with --validate=strict."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    shut = {key: closed(value) for key, value in schema.items()}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and not is_open:
        if "metadata" in schema["properties"]:
            shut["properties"].setdefault("apiVersion", {})
        shut["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        shut.pop("type", None)
        shut["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    shut.pop("format", None)
    # The pattern uses the syntax of another language, which the validator does not support.
    if "(?i)" in str(schema.get("pattern")):
        shut.pop("pattern")
    return shut


CUSTOM = definitions()


def validate(each: chart.Object, minor: str) -> None:
    """Raises an error unless this version of Kubernetes accepts the object."""
    custom = CUSTOM.get((each["apiVersion"], each["kind"]))
    if custom is None:
        kubernetes_validate.validate(each, minor, strict=True)
        return
    # A definition has no schema for metadata.
    jsonschema.validate({**each, "metadata": {}}, custom)


@pytest.mark.parametrize("binary", chart.HELMS, ids=["helm-3", "helm-4"])
@pytest.mark.parametrize("case", chart.VALUES)
def test_helm_finds_nothing_to_lint(case, binary):
    files = [part for file in (chart.IMAGE, chart.VALUES[case]) for part in ("--values", str(file))]
    done = chart.helm(binary, "lint", "--strict", str(chart.chart()), *files)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", chart.VALUES)
def test_both_helms_render_the_same(case):
    three, four = (chart.rendered(case, binary) for binary in chart.HELMS)
    assert sorted(map(json.dumps, three)) == sorted(map(json.dumps, four))
    print(f"\nobjects: {case}: {len(three)}")


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("case", chart.VALUES)
def test_every_object_is_valid(case, minor):
    objects = chart.rendered(case)
    assert len(objects) >= 5
    for each in objects:
        validate(each, minor)


@pytest.mark.parametrize("case", chart.VALUES)
def test_no_object_is_there_twice(case):
    names = [chart.name(each) for each in chart.rendered(case)]
    assert len(names) == len(set(names))


def test_an_api_version_that_was_removed_is_refused():
    budget = {**chart.of("default", "PodDisruptionBudget"), "apiVersion": "policy/v1beta1"}
    with pytest.raises(kubernetes_validate.utils.SchemaNotFoundError):
        validate(budget, MINORS[0])


def test_a_field_that_does_not_exist_is_refused():
    for case, kind in [("default", "Service"), ("gateway", "GRPCRoute"), ("monitoring", "ServiceMonitor")]:
        each = next(each for each in chart.rendered(case) if each["kind"] == kind)
        wrong = {**each, "spec": {**each["spec"], "unknown": 1}}
        with pytest.raises((kubernetes_validate.utils.ValidationError, jsonschema.ValidationError)):
            validate(wrong, MINORS[-1])


def test_kinds_of_others_are_validated_by_their_definitions():
    kinds = {each["kind"] for case in chart.VALUES for each in chart.rendered(case)}
    custom = {kind for _, kind in CUSTOM}
    assert kinds & custom == {
        "BackendTLSPolicy",
        "Certificate",
        "GRPCRoute",
        "PodMonitor",
        "PrometheusRule",
        "ServiceMonitor",
    }
