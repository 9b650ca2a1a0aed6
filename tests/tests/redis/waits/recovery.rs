//! A Redis that restarts with its data: callers and operators receive the reason for which nothing
//! new is granted, and for how long at most.

use std::time::Duration;

use leasehold::Client as Sdk;
use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    broker::{deployment::Deployment, process::BrokerOptions},
    client::unary::{AcquireCall, Client},
    console::client::ConsoleUser,
    net::plain_http::get,
    process::leasehold_command::{Cli, RunningCommand},
    redis::server::RedisServer,
    status::error_reason,
    telemetry::scrape::scrape,
    until::until,
};

const TTL: Duration = Duration::from_secs(1);
/// Quarantine in seconds: the longest validity in the store, 2.65 s, and 1 s.
const Q_S: f64 = 3.65;
const REMAINING: &str = "leasehold_store_recovery_seconds";
const EVENT: &str = "was restarted ";
const EFFECT: &str = " ago: no new locks are granted for at most ";

/// Starts one broker with a short quarantine, on a Redis that keeps its data.
async fn fixture() -> Deployment {
    let redis = RedisServer::start_with(&["--appendonly", "yes"]).await;
    let mut options = BrokerOptions::for_store(redis.url());
    let bounds = [
        ("LIMITS__TTL_MAX", "2s"),
        ("LIMITS__LOCK_DELAY_MAX", "0s"),
        ("STORE__FORMER_MASTER_MAX", "0s"),
    ];
    let settings = bounds.map(|(key, value)| (format!("LEASEHOLD__{key}"), value.to_owned()));
    options.env.extend(settings);
    Deployment::start_on(redis, &options, 1).await
}

#[tokio::test]
async fn callers_and_operators_receive_the_reason() {
    let mut fixture = fixture().await;
    let client = Client::new("worker-1", &fixture.addrs(), 0);
    let call = || AcquireCall::new("a", TTL, Duration::ZERO);
    let broker = &fixture.brokers[0];
    let granting = scrape(broker).await;
    let series = granting.samples.iter();
    let series = series.filter(|sample| sample.name == REMAINING && sample.value == 0.0);
    assert_eq!(series.count(), 8, "one for each cause");
    fixture.redis.restart().await;
    let broker = &fixture.brokers[0];
    let ready = until("a store that recovers", async || {
        let (status, text) = get(broker.admin(), "/readyz").await;
        assert_eq!(status, 200, "{text}");
        (text != "ok").then_some(text)
    })
    .await;
    let start = format!("ok; the store {EVENT}");
    assert!(
        ready.starts_with(&start) && ready.contains(EFFECT),
        "{ready}"
    );
    let refused = client.acquire_at(0, &call()).await;
    let refused = refused.expect_err("nothing is granted");
    assert_eq!(error_reason(&refused), Some(ErrorReason::StoreRecovering));
    let message = refused.message();
    let start = format!("lock default/a: the store {EVENT}");
    assert!(
        message.starts_with(&start) && message.contains(EFFECT),
        "{message}"
    );
    let seen = scrape(broker).await;
    let cause = [("cause", "restarted")];
    let remaining_s = seen.sum(REMAINING, &cause);
    assert!(remaining_s > 0.0 && remaining_s <= Q_S, "{remaining_s}");
    assert_eq!(seen.sum(REMAINING, &[]), remaining_s);
    let user = ConsoleUser::new(broker.admin());
    let server = format!("Redis at {} {EVENT}", fixture.redis.addr());
    until("the overview says why", async || {
        let page = user.get("/").await.body;
        (page.contains(&server) && page.contains(EFFECT)).then_some(())
    })
    .await;
    let log = broker.log();
    let warning = log
        .lines()
        .find(|line| line.contains("may have lost locks"));
    let warning = warning.expect("a warning");
    assert!(warning.contains("restarted"), "{warning}");
    until("grants", async || client.acquire_at(0, &call()).await.ok()).await;
    assert_eq!(get(broker.admin(), "/readyz").await, (200, "ok".to_owned()));
    let seen = scrape(broker).await;
    assert_eq!(seen.sum(REMAINING, &[]), 0.0);
}

/// Returns the first line of messages that contains `text`.
async fn line_with(running: &mut RunningCommand, text: &str) -> String {
    loop {
        let line = running.next_stderr_line().await;
        if line.contains(text) {
            return line;
        }
    }
}

#[tokio::test]
async fn commands_that_wait_print_the_reason() {
    let mut fixture = fixture().await;
    let client = Client::new("worker-1", &fixture.addrs(), 0);
    let cli = Cli::for_broker(fixture.brokers[0].addr());
    let holder = Sdk::connect(&cli.endpoint).await.expect("a broker");
    let guard = holder.lock("a").acquire().await.expect("it is free");
    let mut queued = cli.start(&["run", "--kill-after=0.5s", "a", "--", "echo", "done"]);
    client.wait_for_queue_length_at(0, "a", 1).await;
    fixture.redis.restart().await;
    let line = line_with(&mut queued, EVENT).await;
    let start = "leasehold: waiting for a: position 1 of 1";
    assert!(line.starts_with(start), "{line}");
    let effect = " ago: no new locks for at most ";
    assert!(
        line.contains(&format!("; the store {EVENT}")) && line.contains(effect),
        "{line}"
    );
    let mut late = cli.start(&["run", "--kill-after=0.5s", "b", "--", "echo", "done"]);
    let line = line_with(&mut late, EVENT).await;
    let start = format!("leasehold: waiting for b: the store {EVENT}");
    assert!(line.starts_with(&start) && line.contains(effect), "{line}");
    let late = late.wait_for_exit().await;
    assert_eq!((late.code, late.stdout.as_str()), (Some(0), "done\n"));
    assert!(
        !late.stderr.contains(EVENT),
        "it was printed: {}",
        late.stderr
    );
    // An error means that the restart took longer than the validity of the lease.
    let _ = guard.release().await;
    let queued = queued.wait_for_exit().await;
    assert_eq!((queued.code, queued.stdout.as_str()), (Some(0), "done\n"));
    holder.shutdown().await;
}
