"""Tests of labels, services, routes, network policies, autoscaling, monitoring, hooks and notes."""

import json
import tomllib

import chart
import pytest
import yaml

SELECTOR = {
    "app.kubernetes.io/name": "leasehold",
    "app.kubernetes.io/instance": "locks",
    "app.kubernetes.io/component": "broker",
}
LABELS = {
    "helm.sh/chart",
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/component",
    "app.kubernetes.io/part-of",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
}
OTHERS = {"locks-more", "more-settings"}


def ours(case: str) -> list[chart.Object]:
    """Returns the objects of a case except those that the user adds."""
    return [each for each in chart.rendered(case) if each["metadata"]["name"] not in OTHERS]


@pytest.mark.parametrize("case", chart.VALUES)
def test_every_object_has_the_recommended_labels(case):
    for each in ours(case):
        assert set(each["metadata"]["labels"]) >= LABELS, chart.name(each)
        assert each["metadata"]["namespace"] == ("locks" if case == "names" else "apps")


@pytest.mark.parametrize("case", chart.VALUES)
def test_names_are_no_longer_than_63(case):
    for each in ours(case):
        assert len(each["metadata"]["name"]) <= 63, chart.name(each)


def test_names_labels_and_images_can_be_replaced():
    for each in ours("names"):
        assert each["metadata"]["labels"]["team"] == "platform", chart.name(each)
        assert each["metadata"]["annotations"]["owner"] == "platform@example.com", chart.name(each)
    deployment = chart.of("names", "Deployment")
    assert deployment["metadata"]["name"] == "a-name-that-is-nearly-as-long-as-what-kubernetes"
    assert chart.broker("names")["image"] == "mirror.example.com/leasehold@sha256:" + "0123456789abcdef" * 4
    assert chart.pod("names")["imagePullSecrets"] == [{"name": "mirror-login"}]
    assert chart.pod("names")["serviceAccountName"] == "lock-service"
    account = chart.of("names", "ServiceAccount")
    assert account["metadata"]["name"] == "lock-service"
    assert account["metadata"]["annotations"]["example.com/role"] == "locks"
    about = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    assert chart.broker("default")["image"] == f"registry.example.com/leasehold:{about['appVersion']}"


def test_selectors_are_the_same_whatever_the_values():
    for case in chart.VALUES:
        selector = chart.of(case, "Deployment")["spec"]["selector"]["matchLabels"]
        expected = dict(SELECTOR)
        if case == "names":
            expected["app.kubernetes.io/name"] = "lock-service"
        assert selector == expected, case


@pytest.mark.parametrize("case", chart.VALUES)
def test_selectors_find_brokers_and_nothing_else(case):
    objects = chart.rendered(case)
    found = {name: metadata["labels"] for name, metadata, _ in chart.pods(objects)}
    for each in objects:
        spec = each.get("spec", {})
        selector = {
            "Service": lambda spec: spec["selector"],
            "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
            "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
            "PodMonitor": lambda spec: spec["selector"]["matchLabels"],
        }.get(each["kind"])
        if selector is None:
            continue
        wanted = selector(spec).items()
        selected = [name for name, labels in found.items() if wanted <= labels.items()]
        assert len(selected) == 1 and selected[0].startswith("Deployment/"), chart.name(each)


@pytest.mark.parametrize("case", chart.VALUES)
def test_services_lead_to_ports_that_the_broker_has(case):
    ports = {port["name"]: port["containerPort"] for port in chart.broker(case)["ports"]}
    assert ports == {"grpc": 7070, "admin": 7071}
    services = [each for each in chart.rendered(case) if each["kind"] == "Service"]
    assert len(services) == 3
    for service in services:
        (port,) = service["spec"]["ports"]
        is_admin = service["metadata"]["name"].endswith("-admin")
        assert port["targetPort"] == ("admin" if is_admin else "grpc"), chart.name(service)


def test_services_say_what_they_speak():
    plain, tls = chart.of("default", "Service", "-leasehold"), chart.of("tls", "Service", "-leasehold")
    assert plain["spec"]["ports"][0]["appProtocol"] == "kubernetes.io/h2c"
    assert tls["spec"]["ports"][0]["appProtocol"] == "https"
    assert plain["spec"]["type"] == "ClusterIP"
    assert chart.of("default", "Service", "-headless")["spec"]["clusterIP"] == "None"
    assert chart.of("ingress", "Service", "-leasehold")["spec"]["ports"][0]["port"] == 443


def test_a_route_leads_to_the_api_only():
    route = chart.of("gateway", "GRPCRoute")["spec"]
    assert route["parentRefs"] == [{"name": "public", "namespace": "gateways", "sectionName": "https"}]
    assert route["hostnames"] == ["locks.example.com"]
    assert route["rules"] == [{"backendRefs": [{"name": "locks-leasehold", "port": 7070}]}]
    policy = chart.of("gateway", "BackendTLSPolicy")["spec"]
    assert policy["targetRefs"][0]["name"] == "locks-leasehold"
    assert policy["validation"]["hostname"] == "locks-leasehold.apps.svc"
    assert policy["validation"]["caCertificateRefs"][0]["name"] == "leasehold-ca"


def test_an_ingress_has_a_name_of_its_own():
    ingress = chart.of("ingress", "Ingress")["spec"]
    (rule,) = ingress["rules"]
    assert rule["host"] == "locks.example.com"
    assert rule["http"]["paths"][0]["backend"]["service"] == {"name": "locks-leasehold", "port": {"name": "grpc"}}
    assert ingress["tls"] == [{"hosts": ["locks.example.com"], "secretName": "locks-example-com"}]


def egress(case: str) -> list[set[int]]:
    """Returns the ports of each egress rule."""
    rules = chart.of(case, "NetworkPolicy")["spec"]["egress"]
    return [{port["port"] for port in rule["ports"]} for rule in rules]


@pytest.mark.parametrize(
    ("case", "ports"),
    [
        ("default", [{6379}, {53}]),
        ("trial", [{6379}, {53}]),
        ("redis-tls", [{6380}, {53}]),
        ("high-availability", [{26379, 6379}, {53}]),
        ("sentinel", [{26379, 26380, 7000}, {53}]),
        ("redlock", [{6379}, {53}]),
        ("tracing", [{6379}, {53}, {4317}]),
        ("access", [{6379}, {53}, {8443}]),
    ],
)
def test_the_network_lets_out_what_is_needed(case, ports):
    assert egress(case) == ports


def test_a_port_is_that_of_the_host():
    args = (
        "--set",
        "tracing.otlpEndpoint=http://[fd00::1]:4317",
        "--set",
        "access.jwt.keysUrl=https://issuer/a:9/keys",
    )
    (policy,) = [each for each in chart.rendered("access", chart.HELMS[1], *args) if each["kind"] == "NetworkPolicy"]
    ports = [rule["ports"] for rule in policy["spec"]["egress"]]
    assert ports[2:] == [[{"port": 4317}], [{"port": 443}]]


def test_the_admin_port_is_closed_to_pods_that_are_not_named():
    for case in chart.VALUES:
        policy = next((each for each in chart.rendered(case) if each["kind"] == "NetworkPolicy"), None)
        named = yaml.safe_load(chart.VALUES[case].read_text()).get("networkPolicy", {}).get("adminFrom", [])
        if policy is None:
            assert case == "minimal"
            continue
        rules = [rule for rule in policy["spec"]["ingress"] if {"port": "admin"} in rule["ports"]]
        assert rules == ([{"ports": [{"port": "admin"}], "from": named}] if named else []), case
        # A rule without ports allows all ports, and one without peers allows all peers.
        assert all(rule["ports"] and rule["from"] for rule in policy["spec"]["ingress"]), case


def test_the_network_lets_in_two_ports():
    policy = chart.of("gateway", "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    (api,) = policy["ingress"]
    assert api["ports"] == [{"port": "grpc"}]
    gateways, tests = api["from"]
    assert gateways == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateways"}}}
    labels = next(each for each in chart.rendered("gateway") if each["kind"] == "Pod")["metadata"]["labels"]
    assert tests["podSelector"]["matchLabels"].items() <= labels.items()
    _, admin = chart.of("monitoring", "NetworkPolicy")["spec"]["ingress"]
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert admin == {"ports": [{"port": "admin"}], "from": [prometheus]}
    to = chart.of("redis-tls", "NetworkPolicy")["spec"]["egress"][0]["to"]
    assert to == [{"ipBlock": {"cidr": "192.0.2.0/24"}}]


def test_what_is_off_is_not_there():
    kinds = {each["kind"] for each in chart.rendered("minimal")}
    assert kinds == {"ConfigMap", "Deployment", "Job", "Pod", "Service"}
    assert chart.pod("minimal")["serviceAccountName"] == "default"


def test_a_budget_protects_more_than_one():
    budget = chart.of("default", "PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_an_autoscaler_has_the_say_over_replicas():
    scaler = chart.of("high-availability", "HorizontalPodAutoscaler")["spec"]
    assert scaler["scaleTargetRef"]["name"] == "locks-leasehold"
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (3, 9)
    assert [metric["type"] for metric in scaler["metrics"]] == ["Resource", "Pods"]
    assert scaler["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 300
    assert "replicas" not in chart.of("high-availability", "Deployment")["spec"]
    metric = scaler["metrics"][1]["pods"]["metric"]["name"]
    assert f"`{metric}`" in (chart.ROOT / "docs/metrics.md").read_text()


def test_a_certificate_has_the_names_of_all_services():
    certificate = chart.of("cert-manager", "Certificate")["spec"]
    services = [each for each in chart.rendered("cert-manager") if each["kind"] == "Service"]
    for service in services:
        assert f"{service['metadata']['name']}.apps.svc" in certificate["dnsNames"]
    assert "locks.example.com" in certificate["dnsNames"]
    secrets = [volume["secret"]["secretName"] for volume in chart.pod("cert-manager")["volumes"] if "secret" in volume]
    assert secrets == [certificate["secretName"]]
    assert certificate["issuerRef"] == {"name": "internal", "kind": "ClusterIssuer", "group": "cert-manager.io"}


def test_monitors_find_the_admin_port_and_name_the_job():
    monitor = chart.of("monitoring", "ServiceMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = [each for each in chart.rendered("monitoring") if each["kind"] == "Service"]
    (found,) = [each for each in services if wanted <= each["metadata"]["labels"].items()]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] == found["spec"]["ports"][0]["name"] == "admin"
    assert (endpoint["scheme"], endpoint["interval"]) == ("http", "30s")
    job = {"action": "replace", "targetLabel": "job", "replacement": "leasehold"}
    assert job in endpoint["relabelings"]
    (endpoint,) = chart.of("pod-monitor", "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == "admin" and job in endpoint["relabelings"]


def test_alerts_and_dashboard_are_those_of_deploy():
    alerts = chart.of("monitoring", "PrometheusRule")["spec"]
    assert alerts == yaml.safe_load((chart.ROOT / "deploy/prometheus/rules.yaml").read_text())
    dashboard = chart.of("monitoring", "ConfigMap", "-dashboard")
    assert dashboard["data"]["leasehold.json"] == (chart.ROOT / "deploy/grafana/leasehold.json").read_text()
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"


def hooks(case: str) -> dict[str, tuple[str, str]]:
    """Returns the hook and the weight of each job of a case."""
    jobs = [each for each in chart.rendered(case) if each["kind"] == "Job"]
    return {
        each["spec"]["template"]["spec"]["containers"][0]["name"]: (
            chart.hook(each),
            int(each["metadata"]["annotations"]["helm.sh/hook-weight"]),
        )
        for each in jobs
    }


def test_the_store_is_made_ready_once_and_the_configuration_checked_each_time():
    found = hooks("default")
    assert found == {"check-config": ("pre-install,pre-upgrade", -5), "init-store": ("pre-install", 5)}
    # Before the installation, a certificate that it creates cannot be checked, and a store that it creates cannot be
    # written to.
    assert hooks("cert-manager") == {"check-config": ("pre-upgrade", -5), "init-store": ("pre-install", 5)}
    assert hooks("trial") == {"check-config": ("pre-install,pre-upgrade", -5)}
    assert set(hooks("minimal")) == {"check-config"}


@pytest.mark.parametrize(
    ("case", "said", "unsaid"),
    [
        ("default", ["http://locks-leasehold.apps.svc:7070", "without TLS", "can acquire any lock"], ["one broker"]),
        ("minimal", ["one broker", "a new store without an era"], []),
        ("trial", ["single Valkey", "granted 95 s after"], []),
        ("mtls", ["https://locks-leasehold.apps.svc:7070"], ["WARNING"]),
    ],
)
def test_notes_warn_of_what_is_missing(case, said, unsaid):
    notes = chart.notes(case)
    for text in said:
        assert text in notes
    for text in unsaid:
        assert text not in notes


def test_the_call_of_the_notes_is_one_that_the_broker_takes():
    (line,) = [line for line in chart.notes("default").splitlines() if "grpcurl" in line]
    request = json.loads(line.split("'")[1])
    assert request == {"target": {"name": "my-lock"}, "owner": {"id": "me"}}


@pytest.mark.parametrize(("release", "host"), [("locks", "locks-valkey.apps.svc"), ("my-valkey", "my-valkey.apps.svc")])
def test_brokers_wait_for_the_store_that_comes_with_them(release, host):
    options = ["--namespace", "apps", "--kube-version", chart.KUBERNETES, "--values", str(chart.IMAGE)]
    options += ["--values", str(chart.VALUES["trial"])]
    done = chart.helm(chart.HELMS[1], "template", release, str(chart.chart()), *options)
    settings = tomllib.loads(chart.only(chart.parsed(done.stdout), "ConfigMap")["data"]["leasehold.toml"])
    assert settings["store"] == {"url": f"redis://{host}:6379", "wait_for_store": True}
