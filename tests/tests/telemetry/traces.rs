//! Spans of unary calls as a collector receives them: parents, attributes, errors and sampling.

use leasehold_proto::v1::ReleaseRequest;
use leasehold_tests::{
    access::{
        files_and_callers::{AccessFiles, Caller},
        fixture::ALLOW_ALL_POLICY,
    },
    broker::{deployment::Deployment, process::BrokerProcess},
    client::traced_calls::{ParentSpan, acquire_lease, lock_client, request_with_wait},
    redis::server::RedisServer,
    telemetry::collector::{Collector, ReceivedSpan},
};
use tonic::{Code, Request, metadata::MetadataValue};

const ACQUIRE: &str = "leasehold.v1.LockService/Acquire";

/// Starts a broker that traces every call.
async fn fixture() -> (Collector, Deployment) {
    let (collector, redis) = (Collector::start().await, RedisServer::start().await);
    let options = collector.options(redis.url(), "1");
    let deployment = Deployment::start_on(redis, &options, 1).await;
    (collector, deployment)
}

async fn of(collector: &Collector, parent: &ParentSpan, name: &str) -> ReceivedSpan {
    let is_it = |span: &ReceivedSpan| span.trace == parent.trace && span.name == name;
    collector
        .span(&format!("{name} in {parent:?}"), is_it)
        .await
}

#[tokio::test]
async fn a_unary_call_is_a_part_of_its_caller_s_span() {
    let (collector, fixture) = fixture().await;
    let broker = &fixture.brokers[0];
    let parent = ParentSpan::new();
    let mut request = parent.request(request_with_wait("a", 0));
    let state = MetadataValue::from_static("vendor=opaque");
    request.metadata_mut().insert("tracestate", state);
    let lease = acquire_lease(broker, request).await.expect("it is free");
    let span = of(&collector, &parent, ACQUIRE).await;
    assert_eq!((&span.parent, span.is_server), (&parent.span, true));
    assert_eq!(span.trace_state, "vendor=opaque");
    let token = lease.grants[0].fencing_token.to_string();
    for (key, value) in [
        ("rpc.system.name", "grpc"),
        ("rpc.method", ACQUIRE),
        ("rpc.response.status_code", "OK"),
        ("leasehold.namespace", "default"),
        ("leasehold.lock", "a"),
        ("leasehold.mode", "exclusive"),
        ("leasehold.outcome", "granted"),
        ("leasehold.lease_id", &lease.lease_id),
        ("leasehold.fencing_token", &token),
    ] {
        assert_eq!(span.attribute(key), value, "{key}");
    }
    assert_eq!(span.resource["service.name"], "leasehold-server");
    let script = of(&collector, &parent, "redis acquire").await;
    assert!(
        script.is_child_of(&span) && script.is_within(&span),
        "{script:?}"
    );
    assert_eq!(script.attribute("db.system.name"), "redis");

    let parent = ParentSpan::new();
    let release = ReleaseRequest {
        lease: Some(lease),
        ..ReleaseRequest::default()
    };
    let released = lock_client(broker).release(parent.request(release)).await;
    released.expect("it was held");
    let span = of(&collector, &parent, "leasehold.v1.LockService/Release").await;
    assert_eq!(span.attribute("leasehold.lock"), "a");
    let script = of(&collector, &parent, "redis release").await;
    assert!(script.is_child_of(&span) && script.is_within(&span));
}

#[tokio::test]
async fn the_binary_header_of_grpc_says_the_same() {
    let (collector, fixture) = fixture().await;
    let parent = ParentSpan::new();
    let mut request = Request::new(request_with_wait("a", 0));
    let binary = MetadataValue::from_bytes(&parent.binary());
    request.metadata_mut().insert_bin("grpc-trace-bin", binary);
    acquire_lease(&fixture.brokers[0], request)
        .await
        .expect("it is free");
    let span = of(&collector, &parent, ACQUIRE).await;
    assert_eq!(span.parent, parent.span);
}

#[tokio::test]
async fn a_rejection_is_no_error_and_links_to_the_holder() {
    let (collector, fixture) = fixture().await;
    let broker = &fixture.brokers[0];
    let [holder, other] = [ParentSpan::new(), ParentSpan::new()];
    acquire_lease(broker, holder.request(request_with_wait("a", 0)))
        .await
        .expect("it is free");
    let held = acquire_lease(broker, other.request(request_with_wait("a", 0))).await;
    assert_eq!(held.expect_err("held").code(), Code::Aborted);
    let held = of(&collector, &other, ACQUIRE).await;
    assert!(!held.is_error, "{held:?}");
    assert_eq!(held.attribute("rpc.response.status_code"), "ABORTED");
    assert_eq!(held.attribute("leasehold.outcome"), "lock_held");
    let holder = of(&collector, &holder, ACQUIRE).await;
    assert_eq!(held.links, [holder.ids()]);
}

#[tokio::test]
async fn failures_of_the_broker_are_errors() {
    let (collector, fixture) = fixture().await;
    let ready = Request::new(request_with_wait("b", 0));
    acquire_lease(&fixture.brokers[0], ready)
        .await
        .expect("it is free");
    fixture.redis.process().pause().await;
    let parent = ParentSpan::new();
    let failed = acquire_lease(
        &fixture.brokers[0],
        parent.request(request_with_wait("a", 0)),
    )
    .await;
    assert_eq!(failed.expect_err("no store").code(), Code::Unavailable);
    let span = of(&collector, &parent, ACQUIRE).await;
    assert!(span.is_error, "{span:?}");
    assert_eq!(span.attribute("error.type"), "UNAVAILABLE");
    assert_eq!(span.attribute("leasehold.outcome"), "store_unavailable");
    fixture.redis.process().resume();
}

#[tokio::test]
async fn callers_decide_on_sampling_and_the_ratio_applies_otherwise() {
    let (collector, redis) = (Collector::start().await, RedisServer::start().await);
    let mut options = collector.options(redis.url(), "1");
    let name = ("OTEL_SERVICE_NAME".to_owned(), "locks-of-tests".to_owned());
    options.env.push(name);
    options.init_store().await;
    let broker = BrokerProcess::start(&options).await;
    let parent = ParentSpan::new();
    let mut unsampled = Request::new(request_with_wait("a", 0));
    let header = parent.header(false).parse().expect("ASCII");
    unsampled.metadata_mut().insert("traceparent", header);
    acquire_lease(&broker, unsampled).await.expect("it is free");
    let mut nonsense = Request::new(request_with_wait("b", 0));
    let header = MetadataValue::from_static("00-nonsense");
    nonsense.metadata_mut().insert("traceparent", header);
    acquire_lease(&broker, nonsense).await.expect("it is free");
    let of_b = |span: &ReceivedSpan| span.attribute("leasehold.lock") == "b";
    let alone = collector.span("a call without a parent", of_b).await;
    assert_eq!(alone.parent, "");
    assert_eq!(alone.resource["service.name"], "locks-of-tests");
    let seen = collector.received();
    assert!(
        seen.iter().all(|span| span.trace != parent.trace),
        "{seen:?}"
    );
}

#[tokio::test]
async fn trace_flags_of_unauthenticated_callers_are_ignored() {
    let (collector, redis) = (Collector::start().await, RedisServer::start().await);
    let access_files = AccessFiles::new(ALLOW_ALL_POLICY, &[("alice", "alice")]);
    // A ratio that samples no call of this test. A ratio of 0 would disable tracing.
    let mut options = collector.options(redis.url(), "0.000001");
    options.env.extend(access_files.settings());
    options.init_store().await;
    let mut broker = BrokerProcess::start(&options).await;
    let (stranger, known) = (ParentSpan::new(), ParentSpan::new());
    for (parent, token) in [
        (&stranger, None),
        (&stranger, Some("bob")),
        (&known, Some("alice")),
    ] {
        let caller = Caller::new(broker.addr(), broker.admin(), token);
        let mut request = parent.request(request_with_wait("a", 0));
        let state = MetadataValue::from_static("vendor=opaque");
        request.metadata_mut().insert("tracestate", state);
        let answer = caller.locks.clone().acquire(request).await;
        assert_eq!(answer.is_ok(), token == Some("alice"), "{answer:?}");
    }
    let span = of(&collector, &known, ACQUIRE).await;
    assert_eq!(span.trace_state, "vendor=opaque");
    // The broker exports its pending spans when it stops.
    broker.terminate();
    assert_eq!(broker.wait_for_exit().await, Some(0));
    let seen = collector.received();
    let of_strangers = seen.iter().filter(|span| span.trace == stranger.trace);
    assert_eq!(of_strangers.count(), 0, "{seen:?}");
}

#[tokio::test]
async fn unauthenticated_calls_are_sampled() {
    const CALLS: usize = 400;
    let (collector, redis) = (Collector::start().await, RedisServer::start().await);
    let options = collector.options(redis.url(), "0.25");
    options.init_store().await;
    let mut broker = BrokerProcess::start(&options).await;
    for at in 0..CALLS {
        let request = Request::new(request_with_wait(&format!("a{at}"), 0));
        acquire_lease(&broker, request).await.expect("it is free");
    }
    // The broker exports its pending spans when it stops.
    broker.terminate();
    assert_eq!(broker.wait_for_exit().await, Some(0));
    let seen = collector.received();
    let drawn = seen.iter().filter(|span| span.is_server).count();
    // 100 are expected. The probability of a number outside of this range is 10^-12.
    assert!((40..170).contains(&drawn), "{drawn} of {CALLS}");
    let scripts = seen.iter().filter(|span| span.name == "redis acquire");
    assert_eq!(scripts.count(), drawn, "of what is drawn, everything");
}
