"""Tests that the derived files of the chart are up to date."""

import json
import subprocess
import sys

import chart
import yaml


def test_nothing_is_stale():
    done = subprocess.run([sys.executable, chart.TESTS.parent / "derive.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def keys(values: object, schema: dict, path: str = "") -> list[str]:
    """Returns a message for each key that only the values or only the schema has."""
    known = schema.get("properties")
    if known is None or schema.get("additionalProperties") is not False:
        return []
    there = set(values)
    wrong = [f"{path}{key} is in one only" for key in there ^ set(known)]
    for key in there & set(known):
        if isinstance(values[key], dict):
            wrong += keys(values[key], known[key], f"{path}{key}.")
    return wrong


def test_values_and_schema_have_the_same_keys():
    values = yaml.safe_load((chart.CHART / "values.yaml").read_text())
    schema = json.loads((chart.CHART / "values.schema.json").read_text())
    # The schema allows any key here: further times of a probe, and requests and limits of resources.
    for key in ("config", "probes", "resources"):
        del values[key], schema["properties"][key]
    assert keys(values, schema) == []


def test_every_value_has_a_row():
    values = yaml.safe_load((chart.CHART / "values.yaml").read_text())
    readme = (chart.CHART / "README.md").read_text()
    for name, value in values.items():
        assert f"| `{name}`" in readme or all(f"| `{name}.{key}" in readme for key in value), name
    assert readme.count("\n| `") > 100


def test_the_version_of_the_chart_is_that_of_the_broker():
    about = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    said = subprocess.run([chart.SERVER, "--version"], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["leasehold-server", about["appVersion"]]
