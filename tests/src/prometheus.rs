//! A real Prometheus that asks brokers every second what they count.

use std::{fs, net::SocketAddr};

use serde_json::Value;
use tokio::process::Command;

use crate::{
    page::path, plain_http, port::free_port, process::TestProcess, temp_dir::TempDir, until::until,
};

/// One, killed when dropped.
#[derive(Debug)]
pub struct Prometheus {
    at: SocketAddr,
    _process: TestProcess,
    _dir: TempDir,
}

impl Prometheus {
    /// Starts one that asks these admin listeners; it is ready.
    pub async fn start(brokers: &[SocketAddr]) -> Self {
        let (dir, at) = (
            TempDir::new("prometheus"),
            SocketAddr::from(([127, 0, 0, 1], free_port())),
        );
        let targets: Vec<_> = brokers.iter().map(SocketAddr::to_string).collect();
        let config = format!(
            "global: {{scrape_interval: 1s}}\n\
             scrape_configs: [{{job_name: leasehold, static_configs: [{{targets: {targets:?}}}]}}]\n"
        );
        let file = dir.path().join("prometheus.yaml");
        fs::write(&file, config).expect("write a file");
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!(
            "--storage.tsdb.path={}",
            dir.path().join("data").display()
        ));
        command.arg(format!("--web.listen-address={at}"));
        let (process, _) = TestProcess::start(command, &dir.path().join("log"), &[]).await;
        until("Prometheus is ready", async || {
            let answer = plain_http::ask(at, "GET", "/-/ready").await;
            answer.is_ok_and(|(status, _)| status == 200).then_some(())
        })
        .await;
        Self {
            at,
            _process: process,
            _dir: dir,
        }
    }

    /// What it answers to a query now: labels and value of each series.
    pub async fn query(&self, query: &str) -> Vec<(Value, f64)> {
        let (status, answer) =
            plain_http::get(self.at, &path("/api/v1/query", &[("query", query)])).await;
        assert_eq!(status, 200, "{query}: {answer}");
        let answer: Value =
            serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
        let series = answer["data"]["result"].as_array().expect("series");
        let series = series.iter().map(|one| {
            let value = one["value"][1]
                .as_str()
                .and_then(|value| value.parse().ok());
            (one["metric"].clone(), value.expect("a number"))
        });
        series.collect()
    }
}
