"""Tests that the broker accepts all configurations of the chart, and that changes that need a restart replace pods."""

import json
import re
import subprocess
import tomllib

import chart
import laid_out
import pytest
import yaml


def checked(objects: list[chart.Object], tmp_path, certificates, job="check-config") -> subprocess.CompletedProcess:
    """Runs `check-config` with the configuration of a job."""
    found = next(each for each in objects if each["metadata"]["name"].endswith(job))
    spec = found["spec"]["template"]["spec"]
    laid_out.lay_out(objects, spec, tmp_path, certificates)
    (container,) = spec["containers"]
    command = laid_out.command(container, tmp_path)
    assert command[1] == job
    command[1] = "check-config"
    return subprocess.run(command, capture_output=True, text=True, timeout=30, env={})


@pytest.mark.parametrize("case", chart.VALUES)
def test_the_broker_takes_the_configuration(case, tmp_path, certificates):
    done = checked(chart.rendered(case), tmp_path, certificates)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", sorted(set(chart.VALUES) - {"minimal", "trial"}))
def test_the_first_era_needs_what_the_store_needs_and_no_more(case, tmp_path, certificates):
    objects = chart.rendered(case)
    done = checked(objects, tmp_path, certificates, "init-store")
    assert done.returncode == 0, done.stdout + done.stderr
    (text,) = [each["data"]["store.toml"] for each in objects if "store.toml" in each.get("data", {})]
    settings = tomllib.loads(text)
    everything = chart.settings(case)
    assert settings == {key: everything[key] for key in ("store", "limits") if key in everything}
    assert not (tmp_path / "etc/leasehold/secrets/leasehold-tls").exists()


def test_the_broker_refuses_what_a_schema_cannot_see(tmp_path, certificates):
    args = ("--set", "config.limits.ttl_min=20s", "--set", "config.limits.ttl_max=10s")
    done = checked(chart.rendered("default", chart.HELMS[1], *args), tmp_path, certificates)
    assert done.returncode == 1
    assert "limits.ttl_min" in done.stdout + done.stderr


@pytest.mark.parametrize("case", chart.VALUES)
def test_jobs_and_brokers_read_the_same(case):
    texts = {
        each["data"]["leasehold.toml"]
        for each in chart.rendered(case)
        if each["kind"] == "ConfigMap" and "leasehold.toml" in each.get("data", {})
    }
    assert len(texts) == 1
    settings = tomllib.loads(texts.pop())
    assert settings["server"]["listen"].endswith(":7070")
    assert settings["server"]["admin_listen"].endswith(":7071")
    # The setting is required without a certificate, and must be absent with one.
    assert settings["server"].get("insecure", False) == ("tls" not in settings)


def test_names_of_the_admin_port_are_passed_on():
    objects = chart.rendered("default", chart.HELMS[1], "--set", "adminHosts={locks.example.com,locks-admin}")
    maps = [each for each in objects if each["kind"] == "ConfigMap" and not chart.hook(each)]
    settings = tomllib.loads(maps[0]["data"]["leasehold.toml"])
    assert settings["server"]["admin_hosts"] == "locks.example.com,locks-admin"
    assert "admin_hosts" not in chart.settings("default")["server"]


def test_numbers_stay_numbers():
    settings = chart.settings("access")
    assert settings["quotas"] == {"locks": 1_000_000, "acquires_per_second": 2000}
    assert isinstance(settings["quotas"]["locks"], int)
    settings = chart.settings("tracing")
    assert settings["tracing"] == {"otlp_endpoint": "http://collector.observability:4317", "sample_ratio": 0.25}


@pytest.mark.parametrize("case", chart.VALUES)
def test_every_file_that_is_named_is_mounted(case):
    settings = chart.settings(case)
    spec, broker = chart.pod(case), chart.broker(case)
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    there = set()
    for mount in broker["volumeMounts"]:
        for item in volumes[mount["name"]].get("secret", {}).get("items", []):
            there.add(f"{mount['mountPath']}/{item['path']}")
    named = {value for keys in settings.values() for key, value in keys.items() if key.endswith("_file")}
    assert named == there


def test_no_secret_stands_in_a_config_map():
    for case in chart.VALUES:
        text = yaml.safe_dump([each for each in chart.rendered(case) if each["kind"] == "ConfigMap"])
        assert "password =" not in text and "Bearer " not in text, case


def checksum(*args: str) -> str:
    """Returns the checksum whose change replaces the pods."""
    deployment = chart.only(chart.rendered("default", chart.HELMS[1], *args), "Deployment")
    return deployment["spec"]["template"]["metadata"]["annotations"]["checksum/config"]


def keys() -> list[tuple[str, object, bool]]:
    """Returns each key of the broker, a value other than its default, and true if a change needs no restart."""
    values = {
        "a time": ("30s", "45s"),
        "a size": ("128KiB", "96KiB"),
        "a number from 0 to 1,": (0.5, 0.5),
        "a number": (77, 78),
        "a log filter": ("debug", "trace"),
        "true or false": (True, False),
    }
    found = []
    for line in (chart.ROOT / "docs/configuration.md").read_text().splitlines():
        row = re.match(r"\| `([a-z0-9_]+\.[a-z0-9_]+)` \| (?:`(.*)`)? ?\| (.*) \|$", line)
        if not row:
            continue
        key, default, said = row.groups()
        kind = next((kind for kind in values if f"({kind}" in said), None)
        if kind is None or key.endswith("insecure"):
            continue
        one, other = values[kind]
        value = other if str(one).lower() == default else one
        found.append((key, value, "Needs no restart" in said))
    return found


def test_pods_are_replaced_by_what_needs_a_restart_and_by_nothing_else():
    before = checksum()
    seen = {True: 0, False: 0}
    for key, value, is_live in keys():
        after = checksum("--set-json", f"config.{key}={json.dumps(value)}")
        assert (after == before) == is_live, key
        seen[is_live] += 1
    # The 12 reloadable settings are those that docs/configuration.md lists under Reload.
    assert seen[True] == 12 and seen[False] > 25, seen


def test_pods_are_replaced_by_another_store_and_by_no_other_number_of_them():
    before = checksum()
    assert checksum("--set", "store.url=redis://other:6379") != before
    assert checksum("--set", "replicaCount=5") == before
