//! A paused program loses its lock. The program itself, the dashboard, the log, the trace and the
//! operator console each report the reason, as docs/operating.md shows.

use std::time::Duration;

use leasehold_tests::{
    broker::deployment::Deployment,
    client::unary::Client,
    console::client::ConsoleUser,
    process::leasehold_command::{Cli, CommandOutput},
    redis::server::RedisServer,
    scale::print_figures,
    telemetry::{
        collector::{Collector, ReceivedSpan},
        documented_metrics::read_repository_file,
        prometheus::Prometheus,
    },
    until::until,
};
use rustix::process::Signal;
use serde_json::Value;

const LOCK: &str = "invoices";
const ACQUIRE: &str = "leasehold.v1.LockService/Hold Acquire";
const PANEL: &str = "Lost leases by reason";
const LOSS_MESSAGE: &str = "a lease has lost its lock";
const LOSS_DETAIL: &str = "no renewal reached the store in time";
const TTL: Duration = Duration::from_secs(3);

/// A fixture of one broker with logs, traces and metrics.
struct Fixture {
    collector: Collector,
    deployment: Deployment,
    prometheus: Prometheus,
    cli: Cli,
    client: Client,
}

impl Fixture {
    async fn start() -> Self {
        let (collector, redis) = (Collector::start().await, RedisServer::start().await);
        let mut options = collector.options(redis.url(), "1");
        let json = ("LEASEHOLD__LOG__FORMAT", "json");
        options.env.push((json.0.to_owned(), json.1.to_owned()));
        let deployment = Deployment::start_on(redis, &options, 1).await;
        let broker = &deployment.brokers[0];
        Self {
            prometheus: Prometheus::start(&[broker.admin()]).await,
            cli: Cli::for_broker(broker.addr()),
            client: Client::new("observer", &deployment.addrs(), 0),
            collector,
            deployment,
        }
    }

    /// Returns the arguments of `leasehold run` for this owner.
    fn args(owner: &str) -> Vec<String> {
        let ttl = format!("{}s", TTL.as_secs());
        [
            "run",
            LOCK,
            "--ttl",
            &ttl,
            "--kill-after",
            "1s",
            "--owner",
            owner,
            "--",
        ]
        .map(str::to_owned)
        .to_vec()
    }

    /// Pauses a holder until another caller has acquired the lock. Returns the result of the
    /// holder.
    async fn lose_lock(&self) -> CommandOutput {
        let run = |owner: &str, command: &[&str]| {
            let mut args = Self::args(owner);
            args.extend(command.iter().map(|word| (*word).to_owned()));
            let args: Vec<_> = args.iter().map(String::as_str).collect();
            self.cli.start(&args)
        };
        let loser = run("worker-1", &["sleep", "60"]);
        until("worker-1 holds the lock", async || {
            let lock = self.client.get_lock(LOCK).await.expect("an answer")?;
            (lock.holders.len() == 1).then_some(())
        })
        .await;
        let next = run("worker-2", &["true"]);
        self.client.wait_for_queue_length_at(0, LOCK, 1).await;
        // The panel counts increases of a series, so Prometheus must have a sample from before the
        // loss.
        until("the dashboard has what it needs", async || {
            let series = self.dashboard().await;
            (!series.is_empty()).then_some(())
        })
        .await;
        loser.signal(Signal::STOP);
        assert_eq!(
            next.wait_for_exit().await.code,
            Some(0),
            "worker-2 had its turn"
        );
        loser.signal(Signal::CONT);
        loser.wait_for_exit().await
    }

    /// Returns the series of the panel of lost leases.
    async fn dashboard(&self) -> Vec<(Value, f64)> {
        let dashboard: Value =
            serde_json::from_str(&read_repository_file("deploy/grafana/leasehold.json"))
                .expect("JSON");
        let panels = dashboard["panels"].as_array().expect("panels");
        let panel = panels.iter().find(|panel| panel["title"] == PANEL);
        let query = panel.expect("a panel of losses")["targets"][0]["expr"].as_str();
        let query = query.expect("a query");
        let query = query.replace("$namespace", ".*").replace("$pod", ".*");
        self.prometheus
            .query(&query.replace("$__rate_interval", "1m"))
            .await
    }

    /// Waits for a span with this name that satisfies the condition.
    async fn wait_for_span(
        &self,
        name: &str,
        is_it: impl Fn(&ReceivedSpan) -> bool,
    ) -> ReceivedSpan {
        let is_it = |span: &ReceivedSpan| span.name == name && is_it(span);
        self.collector.span(name, is_it).await
    }
}

#[tokio::test]
async fn each_report_names_the_reason_of_a_lost_lock() {
    let fixture = Fixture::start().await;
    let loser = fixture.lose_lock().await;
    print_figures(&format!(
        "lost_lock: the program: exit {:?}: {}",
        loser.code,
        loser.stderr.trim()
    ));
    assert_eq!(loser.code, Some(123), "{}", loser.stderr);

    let losses = until("the dashboard shows it", async || {
        let mut losses = fixture.dashboard().await;
        losses.retain(|(_, count)| *count > 0.0);
        (!losses.is_empty()).then_some(losses)
    })
    .await;
    print_figures(&format!("lost_lock: the dashboard: {losses:?}"));
    assert_eq!(losses.len(), 1, "{losses:?}");
    assert_eq!(losses[0].0["reason"], "expired");

    let broker = &fixture.deployment.brokers[0];
    let log = broker.log();
    let line = log
        .lines()
        .find(|line| line.contains(LOSS_MESSAGE))
        .expect("a line of the log");
    print_figures(&format!("lost_lock: the log: {line}"));
    let line: Value = serde_json::from_str(line).expect("JSON");
    let fields = &line["fields"];
    for (key, value) in [
        ("why", LOSS_DETAIL),
        ("lock", LOCK),
        ("owner", "worker-1"),
        ("reason", "expired"),
    ] {
        assert_eq!(fields[key], value, "{key}");
    }
    let held = fields["held_ms"].as_u64().map(Duration::from_millis);
    assert!(held > Some(TTL), "{held:?}");

    let lease_id = fields["lease_id"].as_str().expect("a lease");
    let of_lease = |span: &ReceivedSpan| span.attribute("leasehold.lease_id") == lease_id;
    let taken = fixture.wait_for_span(ACQUIRE, of_lease).await;
    assert_eq!(line["trace_id"], taken.trace, "the log leads to the trace");
    let lost = fixture.wait_for_span("lease.lost", of_lease).await;
    let waited = fixture
        .wait_for_span("queue.wait", |span| span.links.contains(&taken.ids()))
        .await;
    for span in [&taken, &lost, &waited] {
        print_figures(&format!(
            "lost_lock: the trace: {} {} of {} {:?} links to {:?} after {:?}",
            span.name,
            span.id,
            span.trace,
            span.attributes,
            span.links,
            span.duration()
        ));
    }
    assert_eq!(lost.attribute("leasehold.reason"), "expired");
    assert_eq!(
        (lost.is_error, lost.status_message.as_str()),
        (true, LOSS_DETAIL)
    );
    assert_eq!(lost.links, [taken.ids()]);
    assert_eq!(waited.attribute("leasehold.outcome"), "granted");

    let page = ConsoleUser::new(broker.admin())
        .get(&format!("/lock?name={LOCK}"))
        .await;
    let (_, ends) = page.body.split_once("Lease history").expect("a part of it");
    let mut rows = ends.split("<tr").map(cell_texts);
    let row = rows.find(|row| row.contains("worker-1"));
    let row = row.expect("the end of worker-1's lease");
    print_figures(&format!("lost_lock: the page: {row}"));
    assert!(
        row.contains("expired") && row.contains(LOSS_DETAIL),
        "{row}"
    );
}

/// Returns the texts of a row's cells, as a browser displays them.
fn cell_texts(row: &str) -> String {
    let texts = row.split('<').filter_map(|part| part.split_once('>'));
    let texts = texts.map(|(_, text)| text.trim());
    let texts: Vec<_> = texts.filter(|text| !text.is_empty()).collect();
    texts.join(" | ")
}
