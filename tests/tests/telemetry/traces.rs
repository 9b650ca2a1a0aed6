//! Spans of calls, as a collector gets them: whose part they are, and what they tell.

use leasehold_proto::v1::ReleaseRequest;
use leasehold_tests::{
    broker_process::BrokerProcess,
    callers::{Caller, Doors},
    collector::{Collector, Seen},
    deployment::Deployment,
    guarded::EVERYTHING,
    redis_server::RedisServer,
    traced::{Parent, ask, locks, takes},
};
use tonic::{Code, Request, metadata::MetadataValue};

const ACQUIRE: &str = "leasehold.v1.LockService/Acquire";

/// One broker that traces every call.
async fn site() -> (Collector, Deployment) {
    let (collector, redis) = (Collector::start().await, RedisServer::start().await);
    let options = collector.options(redis.url(), "1");
    let deployment = Deployment::start_on(redis, &options, 1).await;
    (collector, deployment)
}

async fn of(collector: &Collector, parent: &Parent, name: &str) -> Seen {
    let is_it = |span: &Seen| span.trace == parent.trace && span.name == name;
    collector
        .span(&format!("{name} in {parent:?}"), is_it)
        .await
}

#[tokio::test]
async fn a_unary_call_is_a_part_of_its_caller_s_span() {
    let (collector, site) = site().await;
    let broker = &site.brokers[0];
    let parent = Parent::new();
    let mut request = parent.calls(ask("a", 0));
    let state = MetadataValue::from_static("vendor=opaque");
    request.metadata_mut().insert("tracestate", state);
    let lease = takes(broker, request).await.expect("it is free");
    let span = of(&collector, &parent, ACQUIRE).await;
    assert_eq!((&span.parent, span.is_server), (&parent.span, true));
    assert_eq!(span.state, "vendor=opaque");
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
        assert_eq!(span.tells(key), value, "{key}");
    }
    assert_eq!(span.resource["service.name"], "leasehold-server");
    let script = of(&collector, &parent, "redis acquire").await;
    assert!(
        script.is_part_of(&span) && script.is_within(&span),
        "{script:?}"
    );
    assert_eq!(script.tells("db.system.name"), "redis");

    let parent = Parent::new();
    let release = ReleaseRequest {
        lease: Some(lease),
        ..ReleaseRequest::default()
    };
    let released = locks(broker).release(parent.calls(release)).await;
    released.expect("it was held");
    let span = of(&collector, &parent, "leasehold.v1.LockService/Release").await;
    assert_eq!(span.tells("leasehold.lock"), "a");
    let script = of(&collector, &parent, "redis release").await;
    assert!(script.is_part_of(&span) && script.is_within(&span));
}

#[tokio::test]
async fn the_binary_header_of_grpc_says_the_same() {
    let (collector, site) = site().await;
    let parent = Parent::new();
    let mut request = Request::new(ask("a", 0));
    let binary = MetadataValue::from_bytes(&parent.binary());
    request.metadata_mut().insert_bin("grpc-trace-bin", binary);
    takes(&site.brokers[0], request).await.expect("it is free");
    let span = of(&collector, &parent, ACQUIRE).await;
    assert_eq!(span.parent, parent.span);
}

#[tokio::test]
async fn a_refusal_is_no_error_and_leads_to_the_holder() {
    let (collector, site) = site().await;
    let broker = &site.brokers[0];
    let [holder, other] = [Parent::new(), Parent::new()];
    takes(broker, holder.calls(ask("a", 0)))
        .await
        .expect("it is free");
    let held = takes(broker, other.calls(ask("a", 0))).await;
    assert_eq!(held.expect_err("held").code(), Code::Aborted);
    let held = of(&collector, &other, ACQUIRE).await;
    assert!(!held.is_error, "{held:?}");
    assert_eq!(held.tells("rpc.response.status_code"), "ABORTED");
    assert_eq!(held.tells("leasehold.outcome"), "lock_held");
    let holder = of(&collector, &holder, ACQUIRE).await;
    assert_eq!(held.links, [holder.ids()]);
}

#[tokio::test]
async fn what_the_broker_is_to_blame_for_is_an_error() {
    let (collector, site) = site().await;
    let ready = Request::new(ask("b", 0));
    takes(&site.brokers[0], ready).await.expect("it is free");
    site.redis.process().pause().await;
    let parent = Parent::new();
    let failed = takes(&site.brokers[0], parent.calls(ask("a", 0))).await;
    assert_eq!(failed.expect_err("no store").code(), Code::Unavailable);
    let span = of(&collector, &parent, ACQUIRE).await;
    assert!(span.is_error, "{span:?}");
    assert_eq!(span.tells("error.type"), "UNAVAILABLE");
    assert_eq!(span.tells("leasehold.outcome"), "store_unavailable");
    site.redis.process().resume();
}

#[tokio::test]
async fn callers_decide_and_the_share_counts_where_they_have_not() {
    let (collector, redis) = (Collector::start().await, RedisServer::start().await);
    let mut options = collector.options(redis.url(), "1");
    let name = ("OTEL_SERVICE_NAME".to_owned(), "locks-of-tests".to_owned());
    options.env.push(name);
    options.init_store().await;
    let broker = BrokerProcess::start(&options).await;
    let parent = Parent::new();
    let mut unsampled = Request::new(ask("a", 0));
    let header = parent.header(false).parse().expect("ASCII");
    unsampled.metadata_mut().insert("traceparent", header);
    takes(&broker, unsampled).await.expect("it is free");
    let mut nonsense = Request::new(ask("b", 0));
    let header = MetadataValue::from_static("00-nonsense");
    nonsense.metadata_mut().insert("traceparent", header);
    takes(&broker, nonsense).await.expect("it is free");
    let of_b = |span: &Seen| span.tells("leasehold.lock") == "b";
    let alone = collector.span("a call without a parent", of_b).await;
    assert_eq!(alone.parent, "");
    assert_eq!(alone.resource["service.name"], "locks-of-tests");
    let seen = collector.seen();
    assert!(
        seen.iter().all(|span| span.trace != parent.trace),
        "{seen:?}"
    );
}

#[tokio::test]
async fn strangers_decide_nothing() {
    let (collector, redis) = (Collector::start().await, RedisServer::start().await);
    let doors = Doors::new(EVERYTHING, &[("alice", "alice")]);
    // So few that none is drawn; a share of 0 would turn tracing off.
    let mut options = collector.options(redis.url(), "0.000001");
    options.env.extend(doors.settings());
    options.init_store().await;
    let mut broker = BrokerProcess::start(&options).await;
    let (stranger, known) = (Parent::new(), Parent::new());
    for (parent, token) in [
        (&stranger, None),
        (&stranger, Some("bob")),
        (&known, Some("alice")),
    ] {
        let caller = Caller::new(broker.addr(), broker.admin(), token);
        let mut request = parent.calls(ask("a", 0));
        let state = MetadataValue::from_static("vendor=opaque");
        request.metadata_mut().insert("tracestate", state);
        let answer = caller.locks.clone().acquire(request).await;
        assert_eq!(answer.is_ok(), token == Some("alice"), "{answer:?}");
    }
    let span = of(&collector, &known, ACQUIRE).await;
    assert_eq!(span.state, "vendor=opaque");
    // It sends what it has.
    broker.terminate();
    assert_eq!(broker.ended().await, Some(0));
    let seen = collector.seen();
    let of_strangers = seen.iter().filter(|span| span.trace == stranger.trace);
    assert_eq!(of_strangers.count(), 0, "{seen:?}");
}

#[tokio::test]
async fn of_the_calls_of_nobody_a_share_is_drawn() {
    const CALLS: usize = 400;
    let (collector, redis) = (Collector::start().await, RedisServer::start().await);
    let options = collector.options(redis.url(), "0.25");
    options.init_store().await;
    let mut broker = BrokerProcess::start(&options).await;
    for at in 0..CALLS {
        let request = Request::new(ask(&format!("a{at}"), 0));
        takes(&broker, request).await.expect("it is free");
    }
    // It sends what it has.
    broker.terminate();
    assert_eq!(broker.ended().await, Some(0));
    let seen = collector.seen();
    let drawn = seen.iter().filter(|span| span.is_server).count();
    // A hundred; by chance outside of it once in 10^12.
    assert!((40..170).contains(&drawn), "{drawn} of {CALLS}");
    let scripts = seen.iter().filter(|span| span.name == "redis acquire");
    assert_eq!(scripts.count(), drawn, "of what is drawn, everything");
}
