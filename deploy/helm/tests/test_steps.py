"""Tests of the steps of `helm test`, which are run one by one against a broker."""

import json
import subprocess

import chart
import laid_out
import pytest


@pytest.fixture
def endpoint(tmp_path):
    """Yields the endpoint of a broker on the embedded store."""
    command = [chart.SERVER, "dev", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]
    with laid_out.served(command, tmp_path / "log") as (api, _):
        yield f"http://127.0.0.1:{api}"


def steps(case: str) -> list[chart.Object]:
    """Returns the containers of the test pod, in their order."""
    pod = next(each for each in chart.rendered(case) if each["kind"] == "Pod")
    assert chart.hook(pod) == "test"
    assert pod["spec"]["restartPolicy"] == "Never"
    return pod["spec"]["initContainers"] + pod["spec"]["containers"]


def take(step: chart.Object, endpoint: str, tmp_path) -> subprocess.CompletedProcess:
    """Runs a step on this machine."""
    assert step["command"] == ["/usr/local/bin/leasehold"]
    paths = {"/lease/": f"{tmp_path}/", "/usr/local/bin/leasehold": str(chart.CLI)}
    args = list(step["args"])
    for there, here in paths.items():
        args = [arg.replace(there, here) for arg in args]
    env = {each["name"]: each["value"] for each in step["env"]}
    env["LEASEHOLD_ENDPOINT"] = endpoint
    return subprocess.run([chart.CLI, *args], env=env, capture_output=True, text=True, timeout=30)


def token(endpoint: str, lock: str) -> int:
    """Returns the fencing token of the latest grant of the lock."""
    look = [chart.CLI, "get", lock, "-o", "json", "--endpoint", endpoint]
    return json.loads(subprocess.run(look, capture_output=True, text=True, check=True).stdout)["last_fencing_token"]


def test_the_steps_succeed_and_the_second_token_is_larger(endpoint, tmp_path):
    tokens = []
    for step in steps("default"):
        done = take(step, endpoint, tmp_path)
        assert done.returncode == 0, (step["name"], done.stdout, done.stderr)
        if step["name"].endswith("-token"):
            tokens.append(token(endpoint, "helm-test"))
            assert str(tokens[-1]) in done.stdout
    assert len(tokens) == 2 and tokens[0] < tokens[1]


def test_a_lock_that_somebody_else_has_is_told(endpoint, tmp_path):
    first = steps("default")[0]
    assert take(first, endpoint, tmp_path).returncode == 0
    assert take(first, endpoint, tmp_path).returncode == 124


def test_a_second_holder_would_be_noticed(endpoint, tmp_path):
    refused = next(step for step in steps("default") if step["name"] == "refused")
    # The lock has no holder, so it is granted and the step must fail.
    assert take(refused, endpoint, tmp_path).returncode not in (0, 124)


def test_the_steps_show_what_the_broker_asks_for():
    for case, shown in [
        ("default", set()),
        ("tls", {"LEASEHOLD_CA_FILE"}),
        ("mtls", {"LEASEHOLD_CA_FILE", "LEASEHOLD_CERT_FILE", "LEASEHOLD_KEY_FILE"}),
        ("access", {"LEASEHOLD_CA_FILE", "LEASEHOLD_TOKEN_FILE"}),
    ]:
        for step in steps(case):
            env = {each["name"]: each["value"] for each in step["env"]}
            assert {name for name in env if name.endswith("_FILE")} == shown, case
            scheme = "http" if case == "default" else "https"
            assert env["LEASEHOLD_ENDPOINT"] == f"{scheme}://locks-leasehold.apps.svc:7070"
