//! Pods of the Helm chart as local processes: rendered containers are started, probed and stopped
//! like kubelet does. Each pod has its own loopback address, so that ports stay unchanged.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;
use tokio::time::{sleep, timeout};
use tonic_health::pb::health_check_response::ServingStatus;

use crate::{
    clock::boottime,
    net::health::check,
    process::{
        binaries::{built_binary, leasehold_server},
        child::TestProcess,
        temp_dir::TempDir,
    },
    repository::paths::{repository_root, tool_path},
};

const CONFIG: &str = "/etc/leasehold/config";
const RUN_LIMIT: Duration = Duration::from_secs(30);

/// Returns the loopback address of a pod. The address depends on the process id, so that parallel
/// test runs do not collide.
#[must_use]
pub fn pod_address(pod: u8) -> Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 0x40 | (high & 0x3f), low, pod)
}

/// Objects that Helm renders from the chart and some values.
#[derive(Debug)]
pub struct RenderedChart(Vec<Value>);

impl RenderedChart {
    /// Renders the chart with a file in `deploy/helm/tests/values` and these `--set` options.
    #[must_use]
    pub fn from_values(case: &str, set: &[String]) -> Self {
        let tools = tool_path("deploy/helm/setup.sh", "path");
        let tests = repository_root().join("deploy/helm/tests");
        let mut render = Command::new(tools.join("python/bin/python"));
        render.arg(tests.join("render.py"));
        render.arg(tests.join(format!("values/{case}.yaml")));
        for set in set {
            render.args(["--set", set]);
        }
        render.env("CHART_TOOLS", tools);
        render.env("LEASEHOLD_SERVER", leasehold_server());
        let output = render.stderr(Stdio::inherit()).output().expect("it runs");
        assert!(output.status.success(), "{case} is rendered");
        Self(serde_json::from_slice(&output.stdout).expect("a list of objects"))
    }

    /// Returns the spec of the Deployment.
    #[must_use]
    pub fn deployment(&self) -> &Value {
        &self.find_object("Deployment", "-leasehold")["spec"]
    }

    /// Runs a job until it exits and returns its stderr.
    pub async fn run_job(&self, suffix: &str) -> String {
        let spec = &self.find_object("Job", suffix)["spec"]["template"]["spec"];
        let dir = TempDir::new("job");
        let job = self.command(spec, &dir, Ipv4Addr::LOCALHOST);
        let output = tokio::process::Command::from(job).output();
        let output = timeout(RUN_LIMIT, output).await.expect("it ends by itself");
        let output = output.expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{suffix}: {stderr}");
        stderr
    }

    /// Returns the command of the first container, with the files of its ConfigMap written to
    /// `dir`.
    fn command(&self, spec: &Value, dir: &TempDir, ip: Ipv4Addr) -> Command {
        let container = &spec["containers"][0];
        let volumes = spec["volumes"].as_array().expect("volumes");
        let config = volumes.iter().find(|volume| volume["name"] == "config");
        let map = text(&config.expect("it has one")["configMap"]["name"]);
        for (key, value) in self.find_object("ConfigMap", map)["data"]
            .as_object()
            .expect("files")
        {
            // The address 0.0.0.0 would include the addresses of the other pods on this machine.
            let value = text(value).replace("0.0.0.0", &ip.to_string());
            fs::write(dir.path().join(key), value).expect("a file of the test");
        }
        let (_, name) = text(&container["command"][0])
            .rsplit_once('/')
            .expect("a path");
        let mut command = Command::new(built_binary(name));
        let here = dir.path().display().to_string();
        command.args(texts(&container["args"]).map(|arg| arg.replace(CONFIG, &here)));
        for variable in container["env"].as_array().into_iter().flatten() {
            command.env(text(&variable["name"]), text(&variable["value"]));
        }
        command
    }

    fn find_object(&self, kind: &str, suffix: &str) -> &Value {
        let is_it = |object: &&Value| {
            object["kind"] == kind && text(&object["metadata"]["name"]).ends_with(suffix)
        };
        let object = self.0.iter().find(is_it);
        object.unwrap_or_else(|| panic!("no {kind} whose name ends with {suffix}"))
    }
}

/// A pod of the Deployment with its broker process.
#[derive(Debug)]
pub struct Pod {
    broker: TestProcess,
    ip: Ipv4Addr,
    spec: Value,
    _dir: TempDir,
}

impl Pod {
    /// Starts a pod, and waits until its startup and readiness probes succeed.
    pub async fn start(rendered: &RenderedChart, ip: Ipv4Addr) -> Self {
        let spec = rendered.deployment()["template"]["spec"].clone();
        let dir = TempDir::new("pod");
        let command = rendered.command(&spec, &dir, ip);
        let log = dir.path().join("stderr.log");
        let marks = ["admin listening on ", "listening on "];
        let (broker, _) = TestProcess::start(command.into(), &log, &marks).await;
        let pod = Self {
            broker,
            ip,
            spec,
            _dir: dir,
        };
        for probe in ["startupProbe", "readinessProbe"] {
            pod.wait_for_probe(probe).await;
        }
        pod
    }

    /// Returns the addresses of a pod's API and admin port.
    #[must_use]
    pub fn addresses(ip: Ipv4Addr) -> (SocketAddr, SocketAddr) {
        let at = |port| SocketAddr::new(IpAddr::V4(ip), port);
        (at(7070), at(7071))
    }

    #[must_use]
    pub fn ip(&self) -> Ipv4Addr {
        self.ip
    }

    /// Returns the broker process, which tests pause and resume.
    #[must_use]
    pub fn broker(&self) -> &TestProcess {
        &self.broker
    }

    /// Returns the failure threshold of a probe, and the period between two probes.
    #[must_use]
    pub fn probe_threshold(&self, probe: &str) -> (u64, Duration) {
        let probe = &self.container()[probe];
        let period = probe["periodSeconds"].as_u64().expect("a number");
        let threshold = probe["failureThreshold"].as_u64().expect("a number");
        (threshold, Duration::from_secs(period))
    }

    /// Runs a probe once. Returns true if it succeeds within the probe's timeout.
    pub async fn probe_succeeds(&self, probe: &str) -> bool {
        let probe = &self.container()[probe];
        let limit = Duration::from_secs(probe["timeoutSeconds"].as_u64().expect("a number"));
        let port = probe["grpc"]["port"].as_u64().expect("it asks by gRPC");
        let port = u16::try_from(port).expect("a port");
        let at = SocketAddr::new(IpAddr::V4(self.ip), port);
        let answer = timeout(limit, check(at, text(&probe["grpc"]["service"]))).await;
        matches!(answer, Ok(Ok(ServingStatus::Serving)))
    }

    /// Stops the pod like kubelet: preStop sleep, then SIGTERM. Asserts that the broker exits with
    /// code 0 within the grace period, and returns the duration of the stop.
    pub async fn stop(mut self) -> Duration {
        let from = boottime();
        let grace = self.spec["terminationGracePeriodSeconds"].as_u64();
        let grace = Duration::from_secs(grace.expect("a number"));
        let slept = self.container()["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64();
        let stopping = async {
            sleep(Duration::from_secs(slept.expect("a number"))).await;
            self.broker.terminate();
            self.broker.wait_for_exit().await
        };
        let code = timeout(grace, stopping).await.expect("before it is killed");
        assert_eq!(code, Some(0), "in good order");
        boottime() - from
    }

    async fn wait_for_probe(&self, probe: &str) {
        let (threshold, period) = self.probe_threshold(probe);
        // Kubelet would retry a failed readiness probe without limit. Here at least 60 attempts are
        // allowed.
        for _ in 0..threshold.max(60) {
            if self.probe_succeeds(probe).await {
                return;
            }
            sleep(period).await;
        }
        panic!("{probe} failed {threshold} times");
    }

    fn container(&self) -> &Value {
        &self.spec["containers"][0]
    }
}

fn text(value: &Value) -> &str {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is no text"))
}

fn texts(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().expect("a list").iter().map(text)
}
