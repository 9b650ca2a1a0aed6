"""Tests that invalid values are rejected before the installation, with a message that names the error."""

import chart
import pytest

# Values that the schema rejects, with the messages of Helm.
BY_SCHEMA = [
    ("replicas=3", "additional properties 'replicas' not allowed"),
    ("store.uri=redis://a:1", "additional properties 'uri' not allowed"),
    ("replicaCount=0", "minimum: got 0, want 1"),
    ("replicaCount=two", "got string, want integer"),
    ("store.url=http://redis:6379", "does not match pattern"),
    ("store.url=memory", "does not match pattern"),
    ("image.pullPolicy=Sometimes", "value must be one of 'Always', 'IfNotPresent', 'Never'"),
    ("image.digest=sha256:1234", "does not match pattern"),
    ("adminHosts={http://locks}", "does not match pattern"),
    ("service.port=70700", "maximum: got 70,700, want 65,535"),
    ("service.type=ExternalName", "value must be one of 'ClusterIP', 'NodePort', 'LoadBalancer'"),
    ("tls.existingSecret=Not_A_Name", "does not match pattern"),
    ("fullnameOverride=Has.Dots", "does not match pattern"),
    ("access.jwt.keysUrl=http://issuer", "does not match pattern"),
    ("tracing.otlpEndpoint=collector:4317", "does not match pattern"),
    ("autoscaling.targetCpuPercent=150", "maximum: got 150, want 100"),
    ("podDisruptionBudget.maxUnavailable=half", "does not match pattern"),
    ("probes.liveness.periodSeconds=0", "minimum: got 0, want 1"),
    ("probes.liveness.periods=5", "additional properties 'periods' not allowed"),
    ("preStopSleepSeconds=0", "minimum: got 0, want 1"),
    ("terminationGracePeriodSeconds=soon", "got string, want null or integer"),
    ("resources.limit.memory=1Gi", "additional properties 'limit' not allowed"),
    ("config.limits.ttl=10s", "additional properties 'ttl' not allowed"),
    ("config.limits.ttl_max=60", "got number, want string"),
    ("config.log.format=xml", "value must be one of 'auto', 'json', 'text'"),
    ("config.quotas.locks=many", "got string, want integer"),
    ("networkPolicy.storePorts={redis}", "got string, want integer"),
    ("metrics.serviceMonitor.interval=often", "does not match pattern"),
]
# Combinations of values that the chart rejects.
STORE = "store.url=redis://redis:6379"
TLS = "tls.existingSecret=leasehold-tls"
TOKENS = "access.tokens.existingSecret=tokens"
POLICY = "access.policy.existingSecret=policy"
ROUTE = "route.enabled=true,route.parentRefs[0].name=public"
ACCESS = f"{TLS},{TOKENS},{POLICY}"
SERVICE_MONITOR = "metrics.serviceMonitor.enabled=true"
OUTSIDE = "without access control would let any client outside the cluster acquire any lock"
BY_CHART = [
    (f"{STORE},image.repository=", "image.repository is missing: there is no public image; build one with"),
    (f"{STORE},service.type=LoadBalancer", f"service.type: LoadBalancer {OUTSIDE}"),
    (f"{STORE},service.type=NodePort", f"service.type: NodePort {OUTSIDE}"),
    (f"{STORE},ingress.enabled=true,ingress.host=a", f"ingress.enabled {OUTSIDE}"),
    (f"{STORE},{ROUTE}", f"route.enabled {OUTSIDE}"),
    (f"{STORE},{SERVICE_MONITOR}", "networkPolicy.adminFrom is empty, so Prometheus could not reach"),
    (f"{STORE},metrics.podMonitor.enabled=true", "networkPolicy.adminFrom is empty, so Prometheus could not reach"),
    ("", "store.url is missing"),
    (f"{STORE},valkey.enabled=true", "valkey.enabled and store.url name two stores"),
    ("store.url=redis://user:word@redis:6379", "store.url contains a user or a password"),
    ("store.url=redlock://a:1\\,b:1,store.deploymentKey.existingSecret=k", "names 2 servers for RedLock"),
    ("store.url=redlock://a:1\\,b:1\\,c:1\\,d:1,store.deploymentKey.existingSecret=k", "names 4 servers for RedLock"),
    ("store.url=redis-cluster://a:1", "store.deploymentKey.existingSecret is missing"),
    ("store.url=redlock://a:1\\,b:1\\,c:1", "store.deploymentKey.existingSecret is missing"),
    (f"{STORE},store.deploymentKey.existingSecret=k,store.deploymentKey.key=", "store.deploymentKey.key is missing"),
    (f"{STORE},store.credentials.existingSecret=s,store.credentials.sentinelPasswordKey=p", "redis-sentinel:// only"),
    (f"{STORE},store.credentials.usernameKey=user", "store.credentials names keys, but no secret"),
    (f"{STORE},store.tls.caSecret=ca", "TLS for Redis is off"),
    (f"{STORE},config.server.listen=0.0.0.0:1", "config.server.listen is set by the chart"),
    (f"{STORE},config.store.url=redis://other:1", "config.store.url is set by the chart"),
    (f"{STORE},config.tls.cert_file=/a", "config.tls.cert_file names a file"),
    (f"{STORE},{TLS},config.tls.cert_file=/a", "config.tls.cert_file is set by the chart"),
    (f"{STORE},{TLS},config.server.insecure=true", "config.server.insecure with a certificate"),
    (f"{STORE},{TLS},tls.certManager.enabled=true,tls.certManager.issuerRef.name=i", "both provide a certificate"),
    (f"{STORE},tls.certManager.enabled=true", "tls.certManager.issuerRef.name is missing"),
    (
        f"{STORE},tls.clientCa.existingSecret=ca,tls.probe.existingSecret=p,{POLICY}",
        "tls.clientCa without a cert",
    ),
    (f"{STORE},{TLS},tls.clientCa.existingSecret=ca,{POLICY}", "tls.probe.existingSecret is missing"),
    (f"{STORE},{TLS},tls.probe.existingSecret=p", "tls.probe.existingSecret is for tls.clientCa only"),
    (f"{STORE},{TLS},{POLICY},access.jwt.keysUrl=https://i,access.jwt.keys.existingSecret=k", "both provide keys"),
    (f"{STORE},{TLS},{POLICY},access.jwt.keysUrl=https://i", "access.jwt needs issuer and audience"),
    (f"{STORE},{TLS},access.jwt.issuer=i", "access.jwt has no keys"),
    (f"{STORE},{POLICY}", "access.policy without authentication"),
    (f"{STORE},{TLS},{TOKENS}", "access.policy.existingSecret is missing: every request would be denied"),
    (f"{STORE},{TOKENS},{POLICY}", "without TLS would send credentials unencrypted"),
    (f"{STORE},tracing.headers.existingSecret=h", "tracing.headers without tracing.otlpEndpoint"),
    (f"{STORE},terminationGracePeriodSeconds=15", "a shutdown takes preStopSleepSeconds and"),
    (f"{STORE},terminationGracePeriodSeconds=30,config.server.drain_timeout=25500ms", "31 s together"),
    (f"{STORE},config.server.drain_timeout=3weeks", "the unit must be h, m, s or ms"),
    (f"{STORE},autoscaling.enabled=true,autoscaling.minReplicas=7", "autoscaling.minReplicas is above"),
    (f"{STORE},route.enabled=true", "route.parentRefs is missing"),
    (f"{STORE},{ROUTE},route.backendTls.caConfigMap=ca", "route.backendTls needs"),
    (f"{STORE},{TLS},{ROUTE}", "set route.backendTls.caConfigMap"),
    (f"{STORE},ingress.enabled=true", "ingress.host is missing"),
    (f"{STORE},service.port=7071", "service.port and service.adminPort are the same"),
    (f"{STORE},metrics.serviceMonitor.enabled=true,metrics.podMonitor.enabled=true", "count everything twice"),
    (f"{STORE},metrics.podMonitor.enabled=true,config.metrics.enabled=false", "nothing for a monitor to scrape"),
    (f"{STORE},{TLS},metrics.serviceMonitor.enabled=true", "metrics.serviceMonitor.tlsConfig is missing"),
    (
        f"{STORE},extraEnv[0].name=LEASEHOLD__STORE__URL,extraEnv[0].value=redis://other:1",
        "extraEnv has LEASEHOLD__STORE__URL",
    ),
    (
        f"{STORE},tracing.otlpEndpoint=http://c:4317,tracing.headers.existingSecret=h,"
        "extraEnv[0].name=OTEL_EXPORTER_OTLP_HEADERS",
        "extraEnv has OTEL_EXPORTER_OTLP_HEADERS in addition to",
    ),
    (f"{STORE},extraArgs={{--listen=0.0.0.0:1}}", "extraArgs has --listen=0.0.0.0:1"),
    (f"{STORE},commonLabels.team=a,podLabels.team=b", "commonLabels has team"),
    (f"{STORE},podLabels.app\\.kubernetes\\.io/name=b", "podLabels has app.kubernetes.io/name"),
    (f"{STORE},extraEnv[0].name=A,extraEnv[1].name=A", "extraEnv has A twice"),
    (f"{STORE},podAnnotations.checksum/config=x", "has checksum/config, by which pods are replaced"),
]


@pytest.mark.parametrize(("values", "said"), BY_SCHEMA)
def test_the_schema_refuses(values, said):
    done = chart.template([chart.VALUES["default"]], "--set", values)
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr
    assert said in done.stderr, done.stderr


@pytest.mark.parametrize(("values", "said"), BY_CHART)
@pytest.mark.parametrize("binary", chart.HELMS, ids=["helm-3", "helm-4"])
def test_the_chart_refuses(values, said, binary):
    done = chart.template([], "--set", values, binary=binary)
    assert done.returncode != 0
    assert said in done.stderr, done.stderr


@pytest.mark.parametrize(
    "outside", ["service.type=LoadBalancer", "service.type=NodePort", "ingress.enabled=true,ingress.host=a", ROUTE]
)
def test_what_leads_in_from_outside_is_rendered_with_access_control(outside):
    backend = "route.backendTls.caConfigMap=ca" if outside == ROUTE else "route.enabled=false"
    done = chart.template([], "--set", f"{STORE},{ACCESS},{outside},{backend}")
    assert done.returncode == 0, done.stderr


def test_all_that_is_wrong_is_told_at_once():
    done = chart.template([], "--set", "route.enabled=true,ingress.enabled=true")
    for said in ("store.url is missing", "route.parentRefs is missing", "ingress.host is missing"):
        assert said in done.stderr


def test_an_older_kubernetes_is_refused():
    done = chart.template([chart.VALUES["default"]], "--kube-version", "1.29.0")
    assert done.returncode != 0
    assert "kubeVersion: >=1.30.0-0 which is incompatible with Kubernetes" in done.stderr
