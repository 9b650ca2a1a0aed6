//! A Prometheus process that scrapes brokers every second.

use std::{fs, net::SocketAddr};

use serde_json::Value;
use tokio::process::Command;

use crate::{
    console::client::path_with_query,
    net::plain_http,
    process::{child::TestProcess, ports::free_port, temp_dir::TempDir},
    until::until,
};

/// A Prometheus process, which is killed when dropped.
#[derive(Debug)]
pub struct Prometheus {
    addr: SocketAddr,
    _process: TestProcess,
    _dir: TempDir,
}

impl Prometheus {
    /// Starts a Prometheus that scrapes these admin listeners, and waits until it is ready.
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
            let answer = plain_http::send_request(at, "GET", "/-/ready").await;
            answer.is_ok_and(|(status, _)| status == 200).then_some(())
        })
        .await;
        Self {
            addr: at,
            _process: process,
            _dir: dir,
        }
    }

    /// Returns the labels and the current value of each series that matches the query.
    pub async fn query(&self, query: &str) -> Vec<(Value, f64)> {
        let (status, answer) = plain_http::get(
            self.addr,
            &path_with_query("/api/v1/query", &[("query", query)]),
        )
        .await;
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
