//! Traces that are disabled, traces without a working collector, and the export of traces at
//! shutdown.

use std::{fs, time::Duration};

use leasehold_tests::{
    broker::process::{BrokerOptions, BrokerProcess},
    client::traced_calls::{ParentSpan, acquire_lease, request_with_wait},
    process::ports::free_port,
    redis::server::RedisServer,
    scale::{print_figures, scaled_count},
    telemetry::collector::Collector,
    until::until,
};
use tokio::{net::TcpListener, time::Instant};

/// Name of the export thread, as /proc truncates it to 15 characters.
const EXPORTS: &str = "OpenTelemetry.T";
const WARNING: &str = "trace export failed";

/// Returns the names of the broker's threads.
fn threads(broker: &BrokerProcess) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", broker.process().pid()));
    let tasks = tasks.expect("it runs").filter_map(Result::ok);
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).collect()
}

fn exports(broker: &BrokerProcess) -> bool {
    threads(broker).iter().any(|name| name == EXPORTS)
}

/// Makes calls that their caller traces, and returns their total duration.
async fn calls(broker: &BrokerProcess, count: usize) -> Duration {
    let started_at = Instant::now();
    for _ in 0..count {
        let parent = ParentSpan::new();
        let request = parent.request(request_with_wait(&parent.trace, 0));
        acquire_lease(broker, request).await.expect("it is free");
    }
    started_at.elapsed()
}

async fn start(options: &BrokerOptions) -> BrokerProcess {
    options.init_store().await;
    BrokerProcess::start(options).await
}

#[tokio::test]
async fn traces_are_off_until_an_endpoint_is_set() {
    let (collector, redis) = (Collector::start().await, RedisServer::start().await);
    let mut broker = start(&BrokerOptions::for_store(redis.url())).await;
    calls(&broker, 3).await;
    assert!(!exports(&broker), "{:?}", threads(&broker));
    broker.terminate();
    assert_eq!(broker.wait_for_exit().await, Some(0));
    // Control: the export thread of a broker with an endpoint is found.
    let traced = BrokerProcess::start(&collector.options(redis.url(), "1")).await;
    calls(&traced, 1).await;
    // A thread sets its name once it runs.
    until("a thread that exports", async || {
        exports(&traced).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_share_of_nothing_and_disabled_libraries_send_nothing() {
    let (collector, redis) = (Collector::start().await, RedisServer::start().await);
    let nothing = collector.options(redis.url(), "0");
    let mut disabled = collector.options(redis.url(), "1");
    let off = ("OTEL_SDK_DISABLED".to_owned(), "true".to_owned());
    disabled.env.push(off);
    nothing.init_store().await;
    for options in [nothing, disabled] {
        let mut broker = BrokerProcess::start(&options).await;
        let request = ParentSpan::new().request(request_with_wait("a", 0));
        let _ = acquire_lease(&broker, request).await;
        assert!(!exports(&broker), "{:?}", threads(&broker));
        broker.terminate();
        assert_eq!(broker.wait_for_exit().await, Some(0));
    }
    assert_eq!(
        (collector.connections(), collector.received().len()),
        (0, 0)
    );
}

#[tokio::test]
async fn the_library_s_own_variable_names_the_collector_too() {
    let (collector, redis) = (Collector::start().await, RedisServer::start().await);
    let mut options = BrokerOptions::for_store(redis.url());
    for (key, value) in [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url()),
        ("OTEL_BSP_SCHEDULE_DELAY", "50".to_owned()),
    ] {
        options.env.push((key.to_owned(), value));
    }
    let broker = start(&options).await;
    calls(&broker, 1).await;
    collector.span("the call", |span| span.is_server).await;
}

#[tokio::test]
async fn the_last_spans_are_sent_before_the_end() {
    let (collector, redis) = (Collector::start().await, RedisServer::start().await);
    let mut options = collector.options(redis.url(), "1");
    // The broker exports nothing before it ends.
    let late = ("OTEL_BSP_SCHEDULE_DELAY".to_owned(), "600000".to_owned());
    options.env.push(late);
    let mut broker = start(&options).await;
    calls(&broker, 20).await;
    assert_eq!(collector.received().len(), 0);
    broker.terminate();
    assert_eq!(broker.wait_for_exit().await, Some(0));
    let seen = collector.received();
    assert_eq!(seen.iter().filter(|span| span.is_server).count(), 20);
}

#[tokio::test]
async fn a_collector_that_is_not_there_costs_a_warning() {
    let redis = RedisServer::start().await;
    let mut options = BrokerOptions::for_store(redis.url());
    for (key, value) in [
        (
            "LEASEHOLD__TRACING__OTLP_ENDPOINT",
            format!("http://127.0.0.1:{}", free_port()),
        ),
        ("LEASEHOLD__TRACING__SAMPLE_RATIO", "1".to_owned()),
        ("OTEL_BSP_SCHEDULE_DELAY", "20".to_owned()),
    ] {
        options.env.push((key.to_owned(), value));
    }
    let mut broker = start(&options).await;
    calls(&broker, 5).await;
    until("a warning", async || {
        broker.log().contains(WARNING).then_some(())
    })
    .await;
    // Dozens of batches fail from here on.
    calls(&broker, scaled_count(2_000, 200)).await;
    broker.terminate();
    let started_at = Instant::now();
    assert_eq!(broker.wait_for_exit().await, Some(0));
    assert!(
        started_at.elapsed() < Duration::from_secs(5),
        "{:?}",
        started_at.elapsed()
    );
    let log = broker.log();
    assert_eq!(log.matches(WARNING).count(), 1, "{log}");
}

#[tokio::test]
async fn a_collector_without_replies_delays_no_call() {
    let redis = RedisServer::start().await;
    // Connections are established, but not accepted.
    let mute = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let mut options = BrokerOptions::for_store(redis.url());
    let addr = mute.local_addr().expect("a bound address");
    for (key, value) in [
        (
            "LEASEHOLD__TRACING__OTLP_ENDPOINT",
            format!("http://{addr}"),
        ),
        ("LEASEHOLD__TRACING__SAMPLE_RATIO", "1".to_owned()),
        ("OTEL_BSP_SCHEDULE_DELAY", "20".to_owned()),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "100".to_owned()),
    ] {
        options.env.push((key.to_owned(), value));
    }
    let mut broker = start(&options).await;
    let took = calls(&broker, scaled_count(3_000, 300)).await;
    broker.terminate();
    let started_at = Instant::now();
    assert_eq!(broker.wait_for_exit().await, Some(0));
    let ended = started_at.elapsed();
    print_figures(&format!(
        "traces: mute collector calls={took:?} end={ended:?}"
    ));
    assert!(ended < Duration::from_secs(5), "{ended:?}");
}
