//! Losses of locks with the Rust client, and outages in which no lock is lost.

#![expect(
    clippy::disallowed_methods,
    reason = "tests run tasks beside the product, which ends them with its own tracker"
)]

use std::time::Duration;

use leasehold::{Client, Error, LostReason, ReleaseError};
use leasehold_tests::{
    broker::{
        deployment::Deployment,
        process::{BrokerOptions, BrokerProcess},
    },
    client::unary,
    clock::boottime,
    load::store_expiry::store_expiry,
    net::http2_proxy::{Direction, Http2Proxy, ProxyMode},
    redis::server::RedisServer,
};
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

const TTL: Duration = Duration::from_secs(2);
/// Maximum delay of the notification of a loss on the busiest machine.
const LOSS_DELAY_MAX: Duration = Duration::from_secs(1);
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Time for which a call without an answer continues after the end of its wait.
const ANSWER_GRACE: Duration = Duration::from_secs(5);

async fn connect(brokers: &[BrokerProcess]) -> Client {
    let urls = brokers
        .iter()
        .map(|broker| format!("http://{}", broker.addr()));
    let urls: Vec<_> = urls.collect();
    let client = Client::connect(&urls.join(",")).await;
    client.expect("a broker answers")
}

#[tokio::test]
async fn a_lock_is_held_no_longer_than_max_hold() {
    let deployment = Deployment::start(1).await;
    let client = connect(&deployment.brokers).await;
    let guard = client.lock("a").ttl(TTL).max_hold(TTL * 2).acquire().await;
    let guard = guard.expect("it is free");
    let granted = boottime();
    let reason = timeout(TIME_LIMIT, guard.lost()).await.expect("it ends");
    let held = boottime() - granted;
    assert!(held >= TTL && held <= TTL * 2 + LOSS_DELAY_MAX, "{held:?}");
    // The validity may end on the client's clock first.
    let expected = [LostReason::MaxHold, LostReason::Expired];
    assert!(expected.contains(&reason), "{reason:?}");
}

#[tokio::test]
async fn a_wait_without_a_reply_ends_at_its_timeout() {
    let wait = Duration::from_millis(600);
    let deployment = Deployment::start(1).await;
    let holder = connect(&deployment.brokers).await;
    let proxy = Http2Proxy::start(deployment.addrs()[0]).await;
    let client = Client::connect(&format!("http://{}", proxy.addr())).await;
    let client = client.expect("the broker answers");
    let guard = holder.lock("a").acquire().await.expect("it is free");
    let started_at = boottime();
    let (queued, is_queued) = oneshot::channel();
    let mut queued = Some(queued);
    let waiting = client.lock("a").wait(wait).on_queue(move |_| {
        if let Some(queued) = queued.take() {
            queued.send(()).expect("it is waited for");
        }
    });
    let cut = async {
        is_queued.await.expect("it is in the queue");
        proxy.set_mode(ProxyMode::RejectConnections);
        assert!(proxy.close_connections().await > 0, "it was connected");
        // The wait ends while the broker is unreachable.
        sleep((started_at + wait).saturating_sub(boottime())).await;
        proxy.set_mode(ProxyMode::Forward);
    };
    let (error, ()) = tokio::join!(waiting.acquire(), cut);
    let error = error.expect_err("it is held");
    assert!(matches!(error, Error::WaitTimeout(_)), "{error:?}");
    assert_eq!(error.holders()[0].lease_id, guard.lease_id());
}

#[tokio::test]
async fn a_store_without_memory_is_reported_and_keeps_guards() {
    let deployment = Deployment::start(1).await;
    let client = connect(&deployment.brokers).await;
    let guard = client.lock("a").ttl(TTL).acquire().await;
    let guard = guard.expect("it is free");
    let mut redis = deployment.redis.connect().await;
    redis.must(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let error = client.lock("b").acquire().await.expect_err("no memory");
    assert!(matches!(error, Error::StoreFull(_)), "{error:?}");
    assert!(error.retry_after().is_some(), "{error:?}");
    let lost = timeout(2 * TTL, guard.lost()).await;
    assert!(lost.is_err() && guard.is_valid(), "{lost:?}");
    guard.release().await.expect("it is held");
}

#[tokio::test]
async fn a_lock_that_the_store_loses_is_reported() {
    let deployment = Deployment::start(1).await;
    let client = connect(&deployment.brokers).await;
    let guard = client.lock("a").acquire().await.expect("it is free");
    deployment.redis.connect().await.must(&["FLUSHALL"]).await;
    let reason = timeout(TIME_LIMIT, guard.lost()).await.expect("notified");
    assert_eq!(reason, LostReason::StoreLost);
    let released = guard.release().await;
    assert!(
        matches!(released, Err(ReleaseError::Lost(LostReason::StoreLost))),
        "{released:?}"
    );
    let recovering = client.lock("b").wait(Duration::ZERO).acquire().await;
    let error = recovering.expect_err("the store has lost data");
    assert!(matches!(error, Error::StoreRecovering(_)), "{error:?}");
    assert!(error.retry_after().is_some());
}

#[tokio::test]
async fn a_holder_without_a_broker_stops_trusting_by_itself() {
    let mut deployment = Deployment::start(1).await;
    let client = connect(&deployment.brokers).await;
    let guard = client.lock("a").ttl(TTL).acquire().await.expect("free");
    let killed_at = boottime();
    deployment.brokers[0].kill().await;
    assert!(guard.is_valid(), "its time is not over yet");
    let reason = timeout(TIME_LIMIT, guard.lost()).await.expect("it ends");
    assert_eq!(reason, LostReason::Expired);
    let after = boottime() - killed_at;
    assert!(after <= TTL, "trusted for {after:?}");
    deployment.brokers[0].restart().await;
    let next = client.lock("a").ttl(TTL).acquire().await;
    let token = next.expect("the client comes back").fencing_token();
    assert!(token > guard.fencing_token());
    assert!(!guard.is_valid(), "nothing is taken again silently");
}

#[tokio::test]
async fn a_drain_moves_guards_and_waits_to_another_broker() {
    let mut deployment = Deployment::start(2).await;
    let client = connect(&deployment.brokers).await;
    let guard = client.lock("a").ttl(TTL).acquire().await.expect("free");
    let waits = tokio::spawn(client.lock("a").ttl(TTL).acquire());
    let observer = unary::Client::new("observer", &deployment.addrs(), 0);
    observer.wait_for_queue_length_at(1, "a", 1).await;
    deployment.brokers[0].terminate();
    assert_eq!(deployment.brokers[0].wait_for_exit().await, Some(0));
    tokio::time::sleep(store_expiry(TTL)).await;
    assert!(guard.is_valid() && guard.lost_reason().is_none());
    assert!(!waits.is_finished());
    let token = guard.fencing_token();
    guard.release().await.expect("it was held");
    let next = waits.await.expect("no panic").expect("its turn");
    assert!(next.fencing_token() > token);
}

#[tokio::test]
async fn a_killed_broker_costs_no_guard() {
    let mut deployment = Deployment::start(2).await;
    let client = connect(&deployment.brokers).await;
    let guard = client.lock("a").ttl(TTL).acquire().await.expect("free");
    let inner = client.lock("a").under(&guard).acquire().await;
    let inner = inner.expect("it is ours");
    deployment.brokers[0].kill().await;
    tokio::time::sleep(store_expiry(TTL)).await;
    assert!(guard.is_valid() && inner.is_valid());
    inner.release().await.expect("on the new stream");
    guard.release().await.expect("it was held");
    let next = client.lock("a").try_acquire().await.expect("an answer");
    assert!(next.is_some(), "both entries are released");
}

#[tokio::test]
async fn a_release_without_an_answer_is_repeated_elsewhere() {
    let mut deployment = Deployment::start(2).await;
    let client = connect(&deployment.brokers).await;
    let guard = client.lock("a").acquire().await.expect("it is free");
    deployment.brokers[0].process().pause().await;
    let release = tokio::spawn(guard.release());
    tokio::task::yield_now().await;
    deployment.brokers[0].kill().await;
    let released = timeout(TIME_LIMIT, release)
        .await
        .expect("at the other broker");
    released.expect("no panic").expect("it was held");
    let next = client.lock("a").try_acquire().await.expect("an answer");
    assert!(next.is_some(), "it is released");
}

/// The store has released the part, but the client has not received the answer, and presents the
/// lease as it was.
#[tokio::test]
async fn a_partial_release_without_a_reply_is_repeated_elsewhere() {
    for is_entry in [false, true] {
        let deployment = Deployment::start(2).await;
        let proxy = Http2Proxy::start(deployment.addrs()[0]).await;
        let urls = format!("http://{},http://{}", proxy.addr(), deployment.addrs()[1]);
        let client = Client::connect(&urls).await.expect("a broker answers");
        let guard = client.lock("a").ttl(TTL).acquire().await.expect("free");
        let part = client.lock(if is_entry { "a" } else { "b" }).under(&guard);
        let part = part.acquire().await.expect("it is ours");
        proxy.set_mode(ProxyMode::DropFrames(Direction::ToClient));
        let lost = proxy.dropped_frames();
        let release = tokio::spawn(part.release());
        proxy.wait_for_dropped_frames(lost + 1).await;
        proxy.set_mode(ProxyMode::RejectConnections);
        proxy.close_connections().await;
        let released = timeout(TIME_LIMIT, release)
            .await
            .expect("at the other broker");
        released.expect("no panic").expect("it was held");
        tokio::time::sleep(store_expiry(TTL)).await;
        assert!(guard.is_valid(), "{:?}", guard.lost_reason());
        let other = client.lock("b").try_acquire().await.expect("an answer");
        assert!(other.is_some(), "it is released");
        guard.release().await.expect("it was held");
    }
}

#[tokio::test]
async fn a_call_without_a_reply_fails_with_that_reason() {
    let mut deployment = Deployment::start(1).await;
    let client = connect(&deployment.brokers).await;
    deployment.brokers[0].kill().await;
    let started_at = boottime();
    let error = client.lock("a").try_acquire().await;
    let error = error.expect_err("no broker answers");
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    let endpoint = deployment.brokers[0].addr().to_string();
    assert!(error.to_string().contains(&endpoint), "{error}");
    let took = boottime() - started_at;
    assert!(took >= ANSWER_GRACE && took < ANSWER_GRACE * 2, "{took:?}");
}

#[tokio::test]
async fn a_store_that_cannot_be_reached_is_waited_for() {
    let redis = RedisServer::start().await;
    let options = BrokerOptions::for_store(redis.url());
    let mut deployment = Deployment::start_on(redis, &options, 1).await;
    let client = connect(&deployment.brokers).await;
    let guard = client.lock("a").ttl(TTL * 5).acquire().await.expect("free");
    deployment.redis.process().pause().await;
    let call = tokio::spawn(client.lock("b").ttl(TTL).acquire());
    tokio::time::sleep(TTL).await;
    assert!(!call.is_finished());
    deployment.redis.process().resume();
    call.await.expect("no panic").map(drop).expect("it is free");
    assert!(guard.is_valid());
    deployment.redis.kill().await;
    let error = client.lock("b").try_acquire().await.expect_err("no store");
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
}

#[tokio::test]
async fn endpoints_are_checked_and_tried_in_order() {
    let deployment = Deployment::start(1).await;
    let nowhere = format!(
        "http://127.0.0.1:{}",
        leasehold_tests::process::ports::free_port()
    );
    for wrong in ["", " , ", "127.0.0.1:7070", "ftp://broker:7070", "http://"] {
        let error = Client::connect(wrong).await.expect_err("no endpoint");
        assert!(
            error.to_string().contains("http://127.0.0.1:7070"),
            "{error}"
        );
    }
    let error = Client::connect(&nowhere)
        .await
        .expect_err("no broker there");
    assert!(error.to_string().contains(&nowhere), "{error}");
    let both = format!("{nowhere},http://{}", deployment.addrs()[0]);
    let client = Client::connect(&both).await.expect("the second answers");
    client
        .lock("a")
        .acquire()
        .await
        .map(drop)
        .expect("it is free");
    let unnamed = Client::builder(&both).owner("").connect().await;
    assert!(unnamed.is_err(), "an owner has a name");
}

#[tokio::test]
async fn invalid_input_is_reported_field_by_field() {
    let deployment = Deployment::start(1).await;
    let client = connect(&deployment.brokers).await;
    for lock in [
        client.lock(""),
        client.lock("a\nb"),
        client.lock("a").permits(2, 1),
        client.lock_all(["a", "a"]),
        client.lock("a").reason("x".repeat(600)),
    ] {
        let error = lock.acquire().await.expect_err("it is not legal");
        assert!(
            matches!(error, Error::Invalid(_) | Error::LimitMismatch(_)),
            "{error:?}"
        );
    }
    client
        .lock("a")
        .acquire()
        .await
        .map(drop)
        .expect("the stream lives on");
}
