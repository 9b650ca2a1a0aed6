//! Why a call waited: its wait leads to the trace of whoever held the lock, also at another broker.

use std::time::Duration;

use leasehold_proto::v1::ReleaseRequest;
use leasehold_tests::{
    broker_process::BrokerProcess,
    collector::{Collector, Seen},
    deployment::Deployment,
    redis_server::RedisServer,
    traced::{Parent, ask, locks, takes},
};
use tonic::{Code, Status};

const ACQUIRE: &str = "leasehold.v1.LockService/Acquire";
const WAIT: &str = "queue.wait";
const LONG_S: i64 = 20;

async fn site(brokers: usize) -> (Collector, Deployment) {
    let (collector, redis) = (Collector::start().await, RedisServer::start().await);
    let options = collector.options(redis.url(), "0.000001");
    let site = Deployment::start_on(redis, &options, brokers).await;
    (collector, site)
}

/// Waits until the broker has looked who holds the lock for which this call waits.
async fn looked(collector: &Collector, parent: &Parent) {
    let is_it = |span: &Seen| span.trace == parent.trace && span.name == "redis get";
    collector.span("the look", is_it).await;
}

async fn of(collector: &Collector, parent: &Parent, name: &str) -> Seen {
    let is_it = |span: &Seen| span.trace == parent.trace && span.name == name;
    collector.span(name, is_it).await
}

/// One holds a lock, another waits for it, each at a broker; the spans of both.
async fn held_and_waited(collector: &Collector, [of_holder, of_waiter]: [&BrokerProcess; 2]) {
    let [holder, waiter] = [Parent::new(), Parent::new()];
    let held = takes(of_holder, holder.calls(ask("a", 0))).await;
    let held = held.expect("it is free");
    let release = async {
        looked(collector, &waiter).await;
        let release = ReleaseRequest {
            lease: Some(held),
            ..ReleaseRequest::default()
        };
        let released = locks(of_holder).release(release).await;
        released.expect("it was held");
    };
    let request = waiter.calls(ask("a", LONG_S));
    let (taken, ()) = tokio::join!(takes(of_waiter, request), release);
    taken.expect("it was given back");
    let call = of(collector, &waiter, ACQUIRE).await;
    let wait = of(collector, &waiter, WAIT).await;
    assert!(wait.is_part_of(&call) && wait.is_within(&call), "{wait:?}");
    assert_eq!(wait.tells("leasehold.queue.position"), "1");
    assert_eq!(wait.tells("leasehold.outcome"), "granted");
    let holder = of(collector, &holder, ACQUIRE).await;
    assert_eq!(wait.links, [holder.ids()], "the way to the holder");
}

#[tokio::test]
async fn a_wait_leads_to_the_holder() {
    let (collector, site) = site(1).await;
    held_and_waited(&collector, [&site.brokers[0], &site.brokers[0]]).await;
}

#[tokio::test]
async fn a_wait_leads_to_the_holder_at_another_broker() {
    let (collector, site) = site(2).await;
    held_and_waited(&collector, [&site.brokers[0], &site.brokers[1]]).await;
    // Who was handed the lock is found in the same way.
    let [next, last] = [Parent::new(), Parent::new()];
    let [of_next, of_last] = [&site.brokers[1], &site.brokers[0]];
    let late = takes(of_next, next.calls(ask("a", 1))).await;
    assert_eq!(code(late), Code::Aborted);
    let wait = of(&collector, &next, WAIT).await;
    assert_eq!(wait.tells("leasehold.outcome"), "wait_timeout");
    assert!(!wait.is_error, "{wait:?}");
    let held = takes(of_last, last.calls(ask("a", 0))).await;
    assert_eq!(code(held), Code::Aborted);
    let held = of(&collector, &last, ACQUIRE).await;
    assert_eq!(held.links, wait.links, "the same holder");
    assert_eq!(held.links.len(), 1);
}

fn code<T>(answer: Result<T, Status>) -> Code {
    answer.map_or_else(|status| status.code(), |_| Code::Ok)
}

#[tokio::test]
async fn a_holder_without_a_trace_is_led_to_by_nobody() {
    let (collector, site) = site(1).await;
    let broker = &site.brokers[0];
    let request = tonic::Request::new(ask("a", 0));
    takes(broker, request).await.expect("it is free");
    let waiter = Parent::new();
    let late = takes(broker, waiter.calls(ask("a", 1))).await;
    assert_eq!(code(late), Code::Aborted);
    let wait = of(&collector, &waiter, WAIT).await;
    assert_eq!(wait.links, []);
    // A wait is as long as it was.
    assert!(wait.duration() >= Duration::from_millis(900), "{wait:?}");
}

#[tokio::test]
async fn the_trace_of_a_holder_is_no_label() {
    let (collector, site) = site(1).await;
    let broker = &site.brokers[0];
    let holder = Parent::new();
    takes(broker, holder.calls(ask("a", 0)))
        .await
        .expect("it is free");
    let held = takes(broker, tonic::Request::new(ask("a", 0))).await;
    let shown = format!("{:?}", held.expect_err("held"));
    let client = leasehold_tests::client::Client::new("observer", &[broker.addr()], 0);
    let lock = client.get_lock("a").await.expect("GetLock works");
    let lock = lock.expect("somebody holds it");
    let shown = format!("{shown}{lock:?}");
    assert!(shown.contains("a-label-value"), "{shown}");
    assert!(!shown.contains(&holder.trace), "{shown}");
    let owner = lock.holders[0].owner.as_ref().expect("an owner");
    assert_eq!(owner.labels.len(), 1);
    drop(collector);
}
