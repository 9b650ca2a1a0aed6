//! Spans of waits: a wait has a link to the trace of the lock's holder, also at another broker.

use std::time::Duration;

use leasehold_proto::v1::ReleaseRequest;
use leasehold_tests::{
    broker::{deployment::Deployment, process::BrokerProcess},
    client::traced_calls::{ParentSpan, acquire_lease, lock_client, request_with_wait},
    redis::server::RedisServer,
    telemetry::collector::{Collector, ReceivedSpan},
};
use tonic::{Code, Status};

const ACQUIRE: &str = "leasehold.v1.LockService/Acquire";
const WAIT: &str = "queue.wait";
const LONG_S: i64 = 20;

async fn fixture(brokers: usize) -> (Collector, Deployment) {
    let (collector, redis) = (Collector::start().await, RedisServer::start().await);
    let options = collector.options(redis.url(), "0.000001");
    let fixture = Deployment::start_on(redis, &options, brokers).await;
    (collector, fixture)
}

/// Waits until the broker has read the holder of the lock for which this call waits.
async fn wait_for_holder_lookup(collector: &Collector, parent: &ParentSpan) {
    let is_it = |span: &ReceivedSpan| span.trace == parent.trace && span.name == "redis get";
    collector.span("the look", is_it).await;
}

async fn of(collector: &Collector, parent: &ParentSpan, name: &str) -> ReceivedSpan {
    let is_it = |span: &ReceivedSpan| span.trace == parent.trace && span.name == name;
    collector.span(name, is_it).await
}

/// Acquires a lock at the first broker, waits for it at the second, and checks the spans of both
/// calls.
async fn check_holder_and_waiter(
    collector: &Collector,
    [of_holder, of_waiter]: [&BrokerProcess; 2],
) {
    let [holder, waiter] = [ParentSpan::new(), ParentSpan::new()];
    let held = acquire_lease(of_holder, holder.request(request_with_wait("a", 0))).await;
    let held = held.expect("it is free");
    let release = async {
        wait_for_holder_lookup(collector, &waiter).await;
        let release = ReleaseRequest {
            lease: Some(held),
            ..ReleaseRequest::default()
        };
        let released = lock_client(of_holder).release(release).await;
        released.expect("it was held");
    };
    let request = waiter.request(request_with_wait("a", LONG_S));
    let (taken, ()) = tokio::join!(acquire_lease(of_waiter, request), release);
    taken.expect("it was released");
    let call = of(collector, &waiter, ACQUIRE).await;
    let wait = of(collector, &waiter, WAIT).await;
    assert!(wait.is_child_of(&call) && wait.is_within(&call), "{wait:?}");
    assert_eq!(wait.attribute("leasehold.queue.position"), "1");
    assert_eq!(wait.attribute("leasehold.outcome"), "granted");
    let holder = of(collector, &holder, ACQUIRE).await;
    assert_eq!(wait.links, [holder.ids()], "the way to the holder");
}

#[tokio::test]
async fn a_wait_links_to_the_holder() {
    let (collector, fixture) = fixture(1).await;
    check_holder_and_waiter(&collector, [&fixture.brokers[0], &fixture.brokers[0]]).await;
}

#[tokio::test]
async fn a_wait_links_to_the_holder_at_another_broker() {
    let (collector, fixture) = fixture(2).await;
    check_holder_and_waiter(&collector, [&fixture.brokers[0], &fixture.brokers[1]]).await;
    // A holder that received the lock by a hand-off is linked in the same way.
    let [next, last] = [ParentSpan::new(), ParentSpan::new()];
    let [of_next, of_last] = [&fixture.brokers[1], &fixture.brokers[0]];
    let late = acquire_lease(of_next, next.request(request_with_wait("a", 1))).await;
    assert_eq!(code(late), Code::Aborted);
    let wait = of(&collector, &next, WAIT).await;
    assert_eq!(wait.attribute("leasehold.outcome"), "wait_timeout");
    assert!(!wait.is_error, "{wait:?}");
    let held = acquire_lease(of_last, last.request(request_with_wait("a", 0))).await;
    assert_eq!(code(held), Code::Aborted);
    let held = of(&collector, &last, ACQUIRE).await;
    assert_eq!(held.links, wait.links, "the same holder");
    assert_eq!(held.links.len(), 1);
}

fn code<T>(answer: Result<T, Status>) -> Code {
    answer.map_or_else(|status| status.code(), |_| Code::Ok)
}

#[tokio::test]
async fn a_holder_without_a_trace_has_no_link() {
    let (collector, fixture) = fixture(1).await;
    let broker = &fixture.brokers[0];
    let request = tonic::Request::new(request_with_wait("a", 0));
    acquire_lease(broker, request).await.expect("it is free");
    let waiter = ParentSpan::new();
    let late = acquire_lease(broker, waiter.request(request_with_wait("a", 1))).await;
    assert_eq!(code(late), Code::Aborted);
    let wait = of(&collector, &waiter, WAIT).await;
    assert_eq!(wait.links, []);
    // The span lasts as long as the wait.
    assert!(wait.duration() >= Duration::from_millis(900), "{wait:?}");
}

#[tokio::test]
async fn the_trace_of_a_holder_is_no_label() {
    let (collector, fixture) = fixture(1).await;
    let broker = &fixture.brokers[0];
    let holder = ParentSpan::new();
    acquire_lease(broker, holder.request(request_with_wait("a", 0)))
        .await
        .expect("it is free");
    let held = acquire_lease(broker, tonic::Request::new(request_with_wait("a", 0))).await;
    let shown = format!("{:?}", held.expect_err("held"));
    let client = leasehold_tests::client::unary::Client::new("observer", &[broker.addr()], 0);
    let lock = client.get_lock("a").await.expect("GetLock works");
    let lock = lock.expect("a caller holds it");
    let shown = format!("{shown}{lock:?}");
    assert!(shown.contains("a-label-value"), "{shown}");
    assert!(!shown.contains(&holder.trace), "{shown}");
    let owner = lock.holders[0].owner.as_ref().expect("an owner");
    assert_eq!(owner.labels.len(), 1);
    drop(collector);
}
