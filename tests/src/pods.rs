//! Pods of the chart as processes of this machine: what Helm renders is started, probed and stopped as
//! kubelet would. Each pod has a loopback address of its own, so ports stay as they are.

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
    binary::{built, leasehold_server},
    clock::boottime,
    health::check,
    process::TestProcess,
    setup::{tool, workspace},
    temp_dir::TempDir,
};

const CONFIG: &str = "/etc/leasehold/config";
const RUN_LIMIT: Duration = Duration::from_secs(30);

/// Returns the loopback address of a pod. Other processes have others, as the same test of a second checkout.
#[must_use]
pub fn address(pod: u8) -> Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 0x40 | (high & 0x3f), low, pod)
}

/// What Helm makes of the chart and some values.
#[derive(Debug)]
pub struct Rendered(Vec<Value>);

impl Rendered {
    /// From a file in `deploy/helm/tests/values`, with these `--set`.
    #[must_use]
    pub fn from_values(case: &str, set: &[String]) -> Self {
        let tools = tool("deploy/helm/setup.sh", "path");
        let tests = workspace().join("deploy/helm/tests");
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

    /// The Deployment's spec.
    #[must_use]
    pub fn deployment(&self) -> &Value {
        &self.named("Deployment", "-leasehold")["spec"]
    }

    /// Runs a job to its end; what it printed.
    pub async fn run_job(&self, suffix: &str) -> String {
        let spec = &self.named("Job", suffix)["spec"]["template"]["spec"];
        let dir = TempDir::new("job");
        let job = self.command(spec, &dir, Ipv4Addr::LOCALHOST);
        let output = tokio::process::Command::from(job).output();
        let output = timeout(RUN_LIMIT, output).await.expect("it ends by itself");
        let output = output.expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{suffix}: {said}");
        said
    }

    /// The first container's command, with the files that it mounts laid out in a folder.
    fn command(&self, spec: &Value, dir: &TempDir, ip: Ipv4Addr) -> Command {
        let container = &spec["containers"][0];
        let volumes = spec["volumes"].as_array().expect("volumes");
        let config = volumes.iter().find(|volume| volume["name"] == "config");
        let map = text(&config.expect("it has one")["configMap"]["name"]);
        for (key, value) in self.named("ConfigMap", map)["data"]
            .as_object()
            .expect("files")
        {
            // On one machine all addresses would be those of the other pods, too.
            let value = text(value).replace("0.0.0.0", &ip.to_string());
            fs::write(dir.path().join(key), value).expect("a file of the test");
        }
        let (_, name) = text(&container["command"][0])
            .rsplit_once('/')
            .expect("a path");
        let mut command = Command::new(built(name));
        let here = dir.path().display().to_string();
        command.args(texts(&container["args"]).map(|arg| arg.replace(CONFIG, &here)));
        for variable in container["env"].as_array().into_iter().flatten() {
            command.env(text(&variable["name"]), text(&variable["value"]));
        }
        command
    }

    fn named(&self, kind: &str, suffix: &str) -> &Value {
        let is_it = |object: &&Value| {
            object["kind"] == kind && text(&object["metadata"]["name"]).ends_with(suffix)
        };
        let object = self.0.iter().find(is_it);
        object.unwrap_or_else(|| panic!("no {kind} whose name ends with {suffix}"))
    }
}

/// A pod of the Deployment, with its broker.
#[derive(Debug)]
pub struct Pod {
    broker: TestProcess,
    ip: Ipv4Addr,
    spec: Value,
    _dir: TempDir,
}

impl Pod {
    /// Starts one, and waits until its startup and readiness probes succeed.
    pub async fn start(rendered: &Rendered, ip: Ipv4Addr) -> Self {
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
            pod.succeeds(probe).await;
        }
        pod
    }

    /// Where it serves: the API, and the admin port.
    #[must_use]
    pub fn place(ip: Ipv4Addr) -> (SocketAddr, SocketAddr) {
        let at = |port| SocketAddr::new(IpAddr::V4(ip), port);
        (at(7070), at(7071))
    }

    /// Its address.
    #[must_use]
    pub fn ip(&self) -> Ipv4Addr {
        self.ip
    }

    /// Its broker, to stop and resume it.
    #[must_use]
    pub fn broker(&self) -> &TestProcess {
        &self.broker
    }

    /// How often a probe may fail in a row, and what lies between two.
    #[must_use]
    pub fn patience(&self, probe: &str) -> (u64, Duration) {
        let probe = &self.container()[probe];
        let period = probe["periodSeconds"].as_u64().expect("a number");
        let threshold = probe["failureThreshold"].as_u64().expect("a number");
        (threshold, Duration::from_secs(period))
    }

    /// Asks once what a probe asks.
    pub async fn is_well(&self, probe: &str) -> bool {
        let probe = &self.container()[probe];
        let limit = Duration::from_secs(probe["timeoutSeconds"].as_u64().expect("a number"));
        let port = probe["grpc"]["port"].as_u64().expect("it asks by gRPC");
        let port = u16::try_from(port).expect("a port");
        let at = SocketAddr::new(IpAddr::V4(self.ip), port);
        let answer = timeout(limit, check(at, text(&probe["grpc"]["service"]))).await;
        matches!(answer, Ok(Ok(ServingStatus::Serving)))
    }

    /// What its end is: the sleep, the signal, an exit in good order within the grace. How long all
    /// of it took.
    pub async fn stop(mut self) -> Duration {
        let from = boottime();
        let grace = self.spec["terminationGracePeriodSeconds"].as_u64();
        let grace = Duration::from_secs(grace.expect("a number"));
        let slept = self.container()["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64();
        let stopping = async {
            sleep(Duration::from_secs(slept.expect("a number"))).await;
            self.broker.terminate();
            self.broker.ended().await
        };
        let code = timeout(grace, stopping).await.expect("before it is killed");
        assert_eq!(code, Some(0), "in good order");
        boottime() - from
    }

    async fn succeeds(&self, probe: &str) {
        let (threshold, period) = self.patience(probe);
        // Kubelet would try again later where readiness fails; here it has as long as a start.
        for _ in 0..threshold.max(60) {
            if self.is_well(probe).await {
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
