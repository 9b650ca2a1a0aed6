//! Spans of lease streams: one for each call and each event, none for the stream or the lease.

use std::time::Duration;

use leasehold::{Client, Guard};
use leasehold_tests::{
    broker::{deployment::Deployment, process::KEY_PREFIX},
    client::operator::{force_release, unsafe_force_release_request},
    redis::server::RedisServer,
    scale::{print_figures, scaled_duration},
    telemetry::collector::{Collector, ReceivedSpan},
};
use opentelemetry::{
    Context, global,
    trace::{FutureExt as _, SpanContext, TraceContextExt as _, Tracer as _, TracerProvider as _},
};
use opentelemetry_sdk::{propagation::TraceContextPropagator, trace::SdkTracerProvider};

const ACQUIRE: &str = "leasehold.v1.LockService/Hold Acquire";
const TTL: Duration = Duration::from_secs(1);
/// TTL of a lease that must not be lost on a busy machine.
const LONG_TTL: Duration = Duration::from_secs(3);

struct Fixture {
    collector: Collector,
    deployment: Deployment,
    client: Client,
}

impl Fixture {
    async fn start() -> Self {
        global::set_text_map_propagator(TraceContextPropagator::new());
        let (collector, redis) = (Collector::start().await, RedisServer::start().await);
        let options = collector.options(redis.url(), "0.000001");
        let deployment = Deployment::start_on(redis, &options, 1).await;
        let client = connect(&deployment, 0).await;
        Self {
            collector,
            deployment,
            client,
        }
    }

    /// Acquires a lock in a span of the program. Returns the guard, the program's span, and the
    /// broker's span.
    async fn acquire_in_span(&self, lock: &str) -> (Guard, SpanContext, ReceivedSpan) {
        self.acquire_in_span_with_ttl(lock, TTL).await
    }

    async fn acquire_in_span_with_ttl(
        &self,
        lock: &str,
        ttl: Duration,
    ) -> (Guard, SpanContext, ReceivedSpan) {
        let tracer = SdkTracerProvider::builder().build().tracer("test");
        let call = Context::new().with_span(tracer.start("a call"));
        let span = call.span().span_context().clone();
        let taken = self.client.lock(lock).ttl(ttl).acquire();
        let guard = taken.with_context(call).await.expect("it is free");
        let trace = span.trace_id().to_string();
        let is_it = |seen: &ReceivedSpan| seen.trace == trace && seen.name == ACQUIRE;
        let seen = self.collector.span("the call", is_it).await;
        (guard, span, seen)
    }

    /// Waits for an event with a link to that call.
    async fn event(&self, name: &str, of: &ReceivedSpan) -> ReceivedSpan {
        let back = of.ids();
        let is_it = |seen: &ReceivedSpan| seen.name == name && seen.links.contains(&back);
        self.collector.span(name, is_it).await
    }
}

async fn connect(deployment: &Deployment, broker: usize) -> Client {
    let addr = deployment.brokers[broker].addr();
    let client = Client::connect(&format!("http://{addr}")).await;
    client.expect("it runs")
}

#[tokio::test]
async fn each_call_is_a_part_of_its_caller_s_span_and_none_is_as_long_as_the_lease() {
    let fixture = Fixture::start().await;
    let started_at = tokio::time::Instant::now();
    let (guard, span, seen) = fixture.acquire_in_span_with_ttl("a", LONG_TTL).await;
    assert_eq!(seen.parent, span.span_id().to_string());
    assert!(seen.is_server);
    for (key, value) in [
        ("leasehold.lock", "a"),
        ("leasehold.outcome", "granted"),
        ("rpc.response.status_code", "OK"),
        ("leasehold.lease_id", guard.lease_id()),
    ] {
        assert_eq!(seen.attribute(key), value, "{key}");
    }
    let script = |span: &ReceivedSpan| span.name == "redis acquire" && span.is_child_of(&seen);
    let script = fixture.collector.span("its script", script).await;
    assert!(script.is_within(&seen));
    fixture.event("lease.granted", &seen).await;
    // Longer than the TTL, so that the lease has been renewed.
    tokio::time::sleep(scaled_duration(LONG_TTL * 10, LONG_TTL + TTL)).await;
    assert!(guard.is_valid());
    guard.release().await.expect("it was held");
    let held = started_at.elapsed();
    let released = fixture.event("lease.release", &seen).await;
    assert_ne!(released.trace, seen.trace);
    let script = |span: &ReceivedSpan| span.name == "redis release" && span.is_child_of(&released);
    fixture.collector.span("its script", script).await;
    let all = fixture.collector.received();
    let longest = all.iter().map(ReceivedSpan::duration).max().expect("spans");
    print_figures(&format!(
        "traces: {} spans, longest {longest:?}, held {held:?}",
        all.len()
    ));
    assert!(longest < LONG_TTL, "{all:#?}");
    // Renewals are frequent, and have no spans.
    assert!(
        all.iter().all(|span| span.name != "redis renew"),
        "{all:#?}"
    );
}

#[tokio::test]
async fn a_loss_links_to_the_call_that_acquired_the_lease() {
    let fixture = Fixture::start().await;
    let (guard, _, seen) = fixture.acquire_in_span("a").await;
    let admin = fixture.deployment.brokers[0].admin();
    let taken = force_release(admin, unsafe_force_release_request("a", guard.lease_id())).await;
    taken.expect("an operator may");
    guard.lost().await;
    let lost = fixture.event("lease.lost", &seen).await;
    assert_eq!(lost.attribute("leasehold.reason"), "revoked");
    assert_eq!(lost.attribute("leasehold.lock"), "a");
    assert_eq!(lost.attribute("leasehold.lease_id"), guard.lease_id());
    assert!(lost.is_error);

    let (guard, _, seen) = fixture.acquire_in_span("b").await;
    let mut redis = fixture.deployment.redis.connect().await;
    let deleted = redis
        .must(&["DEL", &format!("{KEY_PREFIX}{{default:b}}")])
        .await;
    assert_eq!(deleted.integer(), 1);
    guard.lost().await;
    let lost = fixture.event("lease.lost", &seen).await;
    assert_eq!(lost.attribute("leasehold.reason"), "store_lost");
}

#[tokio::test]
async fn only_the_first_failed_renewal_is_recorded() {
    let fixture = Fixture::start().await;
    let (guard, _, seen) = fixture.acquire_in_span_with_ttl("a", TTL * 4).await;
    fixture.deployment.redis.process().pause().await;
    // Renewals are retried until the lease is lost.
    guard.lost().await;
    fixture.deployment.redis.process().resume();
    let failed = fixture.event("lease.renewal_failed", &seen).await;
    assert!(failed.is_error);
    // Spans that were sent before this span have arrived, too.
    let _guard = fixture.acquire_in_span("b").await;
    let failed = |span: &&ReceivedSpan| span.name == "lease.renewal_failed";
    let all = fixture.collector.received();
    assert_eq!(all.iter().filter(failed).count(), 1, "{all:#?}");
}

#[tokio::test]
async fn a_log_line_contains_the_trace_id() {
    let (collector, redis) = (Collector::start().await, RedisServer::start().await);
    let mut options = collector.options(redis.url(), "1");
    for (key, value) in [("FILTER", "leasehold_server=debug"), ("FORMAT", "json")] {
        let key = format!("LEASEHOLD__LOG__{key}");
        options.env.push((key, value.to_owned()));
    }
    let deployment = Deployment::start_on(redis, &options, 1).await;
    let client = connect(&deployment, 0).await;
    let guard = client.lock("a").acquire().await.expect("it is free");
    let of_acquire = |span: &ReceivedSpan| span.name == ACQUIRE;
    let span = collector.span("the call", of_acquire).await;
    let log = deployment.brokers[0].log();
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let lines: Vec<serde_json::Value> = lines.collect();
    let granted = |line: &&serde_json::Value| line["fields"]["message"] == "a lock was granted";
    let granted = lines.iter().find(granted).expect("a line of the grant");
    assert_eq!(granted["level"], "DEBUG");
    assert_eq!(granted["trace_id"], span.trace);
    assert_eq!(granted["span_id"], span.id);
    let fields = &granted["fields"];
    assert_eq!(fields["lease_id"], guard.lease_id());
    assert_eq!(fields["fencing_token"], guard.fencing_token());
    assert_eq!(
        (&fields["namespace"], &fields["lock"]),
        (&"default".into(), &"a".into())
    );
}
