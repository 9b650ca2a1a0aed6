"""Tests of deploy/docker/compose.yaml, whose arguments the broker must accept."""

import subprocess

import chart
import pytest
import yaml

COMPOSE = yaml.safe_load((chart.ROOT / "deploy/docker/compose.yaml").read_text())


@pytest.mark.parametrize("name", ["broker-1", "broker-2", "init-store"])
def test_the_broker_takes_the_arguments(name):
    verb, *flags = COMPOSE["services"][name]["command"]
    assert verb == ("init-store" if name == "init-store" else "serve")
    done = subprocess.run([chart.SERVER, "check-config", *flags], env={}, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr


def test_images_of_registries_can_be_pinned():
    lines = (chart.ROOT / "deploy/docker/Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("FROM ")] == ["FROM ${BUILD_IMAGE} AS build", "FROM scratch"]
    assert any(line.startswith("ARG BUILD_IMAGE=") for line in lines)
    for name, service in COMPOSE["services"].items():
        if "build" in service:
            assert (service["image"], service["build"]["args"]) == ("leasehold", {"BUILD_IMAGE": None}), name
        else:
            assert service["image"].startswith("${VALKEY_IMAGE:-"), name


def test_only_this_machine_reaches_a_broker_without_tls():
    for name, service in COMPOSE["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name


def test_a_stop_has_the_time_of_a_drain():
    settings = yaml.safe_load((chart.CHART / "values.yaml").read_text())["config"]
    assert "server" not in settings, "the drain takes its default, 10 s"
    assert COMPOSE["services"]["broker-1"]["stop_grace_period"] == "15s"
    assert "`server.drain_timeout` | `10s`" in (chart.ROOT / "docs/configuration.md").read_text()


def test_the_store_keeps_what_locks_need():
    command = COMPOSE["services"]["valkey"]["command"]
    assert command[1:3] == ["--appendonly", "yes"]
    assert command[-2:] == ["--maxmemory-policy", "noeviction"]
