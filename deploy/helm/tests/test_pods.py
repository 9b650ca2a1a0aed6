"""Tests of pods: probes, shutdown, security settings and distribution over nodes."""

import subprocess

import chart
import laid_out
import pytest

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "privileged": False,
    "capabilities": {"drop": ["ALL"]},
}
OTHERS = {"first", "beside"}


@pytest.mark.parametrize("case", chart.VALUES)
def test_pods_are_confined(case):
    found = chart.pods(chart.rendered(case))
    assert found
    for name, _, spec in found:
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert security["runAsUser"] == security["runAsGroup"] == 65532, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["enableServiceLinks"] is False, name
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            assert key not in spec, name
        for container in spec.get("initContainers", []) + spec["containers"]:
            if container["name"] not in OTHERS:
                assert container["securityContext"] == RESTRICTED, name
        for volume in spec.get("volumes", []):
            assert set(volume) - {"name"} <= {"configMap", "secret", "emptyDir"}, name


@pytest.mark.parametrize("case", chart.VALUES)
def test_containers_say_what_they_need(case):
    for name, _, spec in chart.pods(chart.rendered(case)):
        for container in spec.get("initContainers", []) + spec["containers"]:
            if container["name"] in OTHERS:
                continue
            resources = container["resources"]
            assert {"cpu", "memory"} <= set(resources["requests"]), name
            assert "memory" in resources["limits"] and "cpu" not in resources["limits"], name


@pytest.mark.parametrize("case", chart.VALUES)
def test_no_list_that_is_merged_by_name_has_a_name_twice(case):
    for name, _, spec in chart.pods(chart.rendered(case)):
        lists = [spec.get("volumes", []), spec["containers"], spec.get("initContainers", [])]
        for container in spec["containers"]:
            lists += [container.get("env", []), container.get("ports", [])]
            paths = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
            assert len(paths) == len(set(paths)), name
        for each in lists:
            names = [item["name"] for item in each]
            assert len(names) == len(set(names)), (name, names)


@pytest.mark.parametrize("case", chart.VALUES)
def test_what_is_mounted_is_a_volume(case):
    for name, _, spec in chart.pods(chart.rendered(case)):
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        mounted = set()
        for container in spec.get("initContainers", []) + spec["containers"]:
            mounts = container.get("volumeMounts", [])
            # Kubernetes does not update files that are mounted with subPath.
            assert all("subPath" not in mount for mount in mounts), name
            mounted |= {mount["name"] for mount in mounts}
        assert mounted == volumes, name


@pytest.mark.parametrize("case", chart.VALUES)
def test_config_maps_are_there_when_a_pod_needs_them(case):
    objects = chart.rendered(case)
    maps = {each["metadata"]["name"]: chart.hook(each) for each in objects if each["kind"] == "ConfigMap"}
    accounts = {each["metadata"]["name"]: chart.hook(each) for each in objects if each["kind"] == "ServiceAccount"}
    for each in objects:
        if each["kind"] not in ("Job", "Deployment"):
            continue
        spec = each["spec"]["template"]["spec"]
        when = chart.hook(each)
        for volume in spec["volumes"]:
            if "configMap" in volume:
                there = maps[volume["configMap"]["name"]]
                assert (when is None) == (there is None), chart.name(each)
                assert when is None or set(when.split(",")) <= set(there.split(",")), chart.name(each)
        account = spec["serviceAccountName"]
        if account != "default":
            assert (when is None) == (accounts[account] is None), chart.name(each)


def test_probes_ask_by_grpc_and_by_number():
    broker = chart.broker("default")
    assert broker["livenessProbe"]["grpc"] == {"port": 7071, "service": "liveness"}
    assert broker["startupProbe"]["grpc"] == {"port": 7071, "service": "liveness"}
    assert broker["readinessProbe"]["grpc"] == {"port": 7071, "service": "readiness"}


def test_probes_ask_by_https_where_there_is_tls():
    broker = chart.broker("tls")
    assert broker["livenessProbe"]["httpGet"] == {"scheme": "HTTPS", "port": 7071, "path": "/livez"}
    assert broker["readinessProbe"]["httpGet"] == {"scheme": "HTTPS", "port": 7071, "path": "/readyz"}
    assert "grpc" not in broker["livenessProbe"]


def test_probes_show_a_certificate_where_clients_must():
    spec, broker = chart.pod("mtls"), chart.broker("mtls")
    command = broker["readinessProbe"]["exec"]["command"]
    assert command[:3] == ["/usr/local/bin/leasehold", "ping", "--service=readiness"]
    host = "locks-leasehold.apps.svc"
    assert f"--endpoint=https://{host}:7071" in command
    # The host name resolves to the pod itself.
    assert spec["hostAliases"] == [{"ip": "127.0.0.1", "hostnames": [host]}]
    mounts = {mount["mountPath"]: mount["name"] for mount in broker["volumeMounts"]}
    assert mounts["/etc/leasehold/probe"] == "probe"


def test_two_secrets_never_share_a_volume():
    secrets = ("--set", "store.credentials.existingSecret=a-b", "--set", "store.deploymentKey.existingSecret=a.b")
    deployment = chart.only(chart.rendered("default", chart.HELMS[1], *secrets), "Deployment")
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    assert len({volume["name"] for volume in volumes}) == len(volumes) == 3


def test_times_of_probes_can_be_set():
    broker = chart.broker("probes")
    assert broker["startupProbe"]["failureThreshold"] == 100
    assert broker["livenessProbe"]["periodSeconds"] == 20
    assert broker["readinessProbe"]["periodSeconds"] == 2


@pytest.mark.parametrize(
    ("case", "sleep", "grace"), [("default", 5, 20), ("probes", 15, 15 + 90 + 5), ("upgrade", 5, 20)]
)
def test_the_grace_is_longer_than_sleep_and_drain(case, sleep, grace):
    assert chart.broker(case)["lifecycle"]["preStop"] == {"sleep": {"seconds": sleep}}
    assert chart.pod(case)["terminationGracePeriodSeconds"] == grace


def test_a_rollout_never_has_one_less():
    spec = chart.of("default", "Deployment")["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


def test_pods_spread_softly_over_zones_and_machines():
    spread = chart.pod("default")["topologySpreadConstraints"]
    assert [each["topologyKey"] for each in spread] == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    selector = chart.of("default", "Deployment")["spec"]["selector"]
    for each in spread:
        assert each["whenUnsatisfiable"] == "ScheduleAnyway"
        assert each["labelSelector"] == selector


def test_everything_can_be_added():
    spec, broker = chart.pod("extras"), chart.broker("extras")
    metadata = chart.of("extras", "Deployment")["spec"]["template"]["metadata"]
    assert broker["env"] == [{"name": "LEASEHOLD__LOG__FILTER", "value": "debug"}]
    assert broker["envFrom"] == [{"configMapRef": {"name": "more-settings", "optional": True}}]
    assert broker["args"] == ["serve", "--config=/etc/leasehold/config/leasehold.toml", "--wait-for-store"]
    assert {"name": "more", "mountPath": "/more"} in broker["volumeMounts"]
    assert {"name": "more", "emptyDir": {}} in spec["volumes"]
    assert [each["name"] for each in spec["initContainers"]] == ["first"]
    assert [each["name"] for each in spec["containers"]] == ["broker", "beside"]
    assert metadata["annotations"]["example.com/pod"] == "yes"
    assert metadata["labels"]["example.com/kind"] == "broker"
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert spec["tolerations"] == [{"key": "locks", "operator": "Exists"}]
    assert "nodeAffinity" in spec["affinity"]
    assert "topologySpreadConstraints" not in spec
    names = {each["metadata"]["name"] for each in chart.rendered("extras")}
    assert {"locks-more", "more-settings"} <= names
    assert chart.pod("high-availability")["priorityClassName"] == "system-cluster-critical"


def test_headers_for_the_collector_come_from_their_secret():
    (env,) = chart.broker("tracing")["env"]
    source = {"secretKeyRef": {"name": "collector-headers", "key": "headers"}}
    assert env == {"name": "OTEL_EXPORTER_OTLP_HEADERS", "valueFrom": source}


def test_the_broker_answers_a_probe_that_shows_a_certificate(tmp_path, certificates):
    objects = chart.rendered("mtls", chart.HELMS[1], "--set", "tls.probe.serverName=localhost")
    spec = chart.only(objects, "Deployment")["spec"]["template"]["spec"]
    laid_out.lay_out(objects, spec, tmp_path, certificates)
    (container,) = spec["containers"]
    anywhere = ["--store=memory", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"]
    with laid_out.served([*laid_out.command(container, tmp_path), *anywhere], tmp_path / "log") as (_, admin):
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = {
                "command": container[probe]["exec"]["command"][:1],
                "args": container[probe]["exec"]["command"][1:],
            }
            command = [part.replace(":7071", f":{admin}") for part in laid_out.command(asked, tmp_path)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=30)
            assert done.returncode == 0, done.stdout + done.stderr
            without = [part for part in command if not part.startswith(("--cert-file", "--key-file"))]
            assert subprocess.run(without, capture_output=True, timeout=30).returncode == 125
