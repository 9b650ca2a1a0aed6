//! Drain of a broker: the requests that it continues to serve, the time at which it exits, and the
//! state that it leaves unchanged.

use std::{net::SocketAddr, time::Duration};

use futures::future::join_all;
use leasehold_proto::v1::{
    ErrorReason, Lease, hold_response::Message as Response, lock_service_client::LockServiceClient,
};
use leasehold_tests::{
    access::fixture::{ALLOW_ALL_POLICY, AccessControlFixture},
    broker::{
        deployment::Deployment,
        process::{BrokerOptions, BrokerProcess},
    },
    client::{
        stream::StreamClient,
        unary::{AcquireCall, Client, HeldLease, channel},
    },
    net::{
        health::{LIVENESS, READINESS, check},
        http2_proxy::Http2Proxy,
        plain_http::get,
        raw_http2::{RawHttp2, RawHttp2Options, frames},
    },
    redis::server::RedisServer,
    status::error_reason,
    until::until,
};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep},
};
use tonic::{Code, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_types::StatusExt as _;

const TTL: Duration = Duration::from_secs(20);
/// Time within which clients are asked to reconnect, a third of the default `drain_timeout`.
const RECONNECT_REQUESTED_WITHIN: Duration = Duration::from_millis(3_333);
/// Time limit far below a `drain_timeout` and a `disconnect_grace`.
const AT_ONCE: Duration = Duration::from_secs(1);

fn immediate_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

fn waiting_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::from_secs(60))
}

/// Opens a stream and acquires a lease on it with this call.
async fn acquire_on_stream(broker: SocketAddr, call: &AcquireCall) -> (StreamClient, Lease) {
    let mut stream = StreamClient::open(broker).await;
    let call = stream.acquire(call, 1).await;
    let lease = stream.expect_granted(call).await;
    (stream, lease)
}

/// Waits until the client is asked to reconnect. Returns the delay before the reconnect.
async fn wait_for_reconnect_request(stream: &mut StreamClient) -> Duration {
    let Response::Reconnect(reconnect) = stream.next_event().await else {
        panic!("something else than Reconnect");
    };
    let delay = reconnect.delay.expect("a delay");
    delay.try_into().expect("a positive delay")
}

async fn is_held(client: &Client, lease: &Lease) -> bool {
    let lock = &lease.grants[0].target.as_ref().expect("a target").name;
    let held = client.get_lock(lock).await.expect("GetLock works");
    held.is_some_and(|held| held.holders[0].lease_id == lease.lease_id)
}

/// Returns true if the call was rejected by a draining broker, with the advice to retry immediately
/// at another broker.
fn is_draining(refused: &Status) -> bool {
    let retry = refused.get_details_retry_info();
    let retry = retry.and_then(|info| info.retry_delay);
    (refused.code(), error_reason(refused), retry)
        == (
            Code::Unavailable,
            Some(ErrorReason::Draining),
            Some(Duration::ZERO),
        )
}

/// Sends the call until the broker responds. The broker closes idle connections during a drain, and
/// a call on a connection that closes is not sent.
async fn call_until_answered(client: &Client, call: &AcquireCall) -> Result<HeldLease, Status> {
    loop {
        match client.acquire_at(0, call).await {
            Err(unsent) if unsent.code() == Code::Cancelled => {}
            answer => return answer,
        }
    }
}

#[tokio::test]
async fn a_draining_broker_rejects_new_calls_and_serves_existing_leases() {
    let mut deployment = Deployment::start(1).await;
    let addr = deployment.brokers[0].addr();
    let before = Client::new("before", &[addr], 0);
    let kept = before
        .acquire_at(0, &immediate_call("kept"))
        .await
        .expect("free");
    let granted = before
        .acquire_at(0, &immediate_call("given"))
        .await
        .expect("free");
    let (mut stream, lease) = acquire_on_stream(addr, &immediate_call("streamed")).await;
    let (other, _left) = acquire_on_stream(addr, &immediate_call("left")).await;
    let waits = before.start_acquire_at(0, &waiting_call("kept"));
    before.wait_for_queue_length_at(0, "kept", 1).await;
    deployment.brokers[0].terminate();
    assert!(wait_for_reconnect_request(&mut stream).await <= RECONNECT_REQUESTED_WITHIN);

    let waited = waits.await.expect("no panic").expect_err("it drains");
    assert!(is_draining(&waited), "{waited:?}");
    // The second client opens a new connection, like a client that was routed here shortly before.
    let after = Client::new("after", &[addr], 0);
    for client in [&before, &after] {
        for call in [immediate_call("new"), waiting_call("kept")] {
            let refused = call_until_answered(client, &call)
                .await
                .expect_err("it drains");
            assert!(is_draining(&refused), "{refused:?}");
        }
    }
    let requests = tokio_stream::pending();
    let refused = LockServiceClient::new(channel(addr)).hold(requests).await;
    let refused = refused.expect_err("a new stream is for another broker");
    assert!(is_draining(&refused), "{refused:?}");
    let late = stream.acquire(&immediate_call("new"), 1).await;
    let refused = stream.expect_refused(late).await;
    assert_eq!(refused.reason(), ErrorReason::Draining);
    assert_eq!(refused.retry_after, Some(prost_types::Duration::default()));

    let kept = before.renew_at(0, &kept).await.expect("still served");
    after.renew_at(0, &kept).await.expect("still served");
    after.release_at(0, &granted).await.expect("still served");
    let is_free = after.get_lock_at(0, "given").await;
    assert_eq!(is_free.map_err(|status| status.code()), Err(Code::NotFound));
    for _ in 0..3 {
        let sequence = stream.heartbeat().await;
        assert_eq!(stream.wait_for_ack(sequence).await, 1);
    }
    let admin = deployment.brokers[0].admin();
    for listener in [addr, admin] {
        for name in READINESS {
            let output = check(listener, name).await.expect("a known name");
            assert_eq!(output, ServingStatus::NotServing);
        }
        let output = check(listener, LIVENESS).await.expect("a known name");
        assert_eq!(output, ServingStatus::Serving);
    }
    assert_eq!(get(admin, "/readyz").await, (503, "draining".to_owned()));
    assert_eq!(get(admin, "/livez").await, (200, "ok".to_owned()));
    let call = stream.release(&lease.lease_id).await;
    let Response::Released(released) = stream.next_event().await else {
        panic!("not released");
    };
    assert_eq!(released.call_id, call);

    drop((stream, other));
    let moved = Instant::now();
    assert_eq!(deployment.brokers[0].wait_for_exit().await, Some(0));
    assert!(moved.elapsed() < AT_ONCE, "{:?}", moved.elapsed());
}

/// Asserts that a drain is bounded by `drain_timeout`, even if a client ignores the request to
/// reconnect, sends nothing or reads nothing.
#[tokio::test]
async fn a_client_that_does_not_reconnect_is_disconnected_at_drain_timeout() {
    /// Heartbeat interval, within the limit of 20 heartbeats per second on a stream.
    const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(100);
    const DRAIN: Duration = Duration::from_secs(3);
    let redis = RedisServer::start().await;
    let mut options = BrokerOptions::for_store(redis.url());
    let setting = ("LEASEHOLD__SERVER__DRAIN_TIMEOUT", "3s");
    options
        .env
        .push((setting.0.to_owned(), setting.1.to_owned()));
    let mut deployment = Deployment::start_on(redis, &options, 2).await;
    let addrs = deployment.addrs();
    let _silent = TcpStream::connect(addrs[0]).await.expect("it listens");
    let (mut stream, lease) =
        acquire_on_stream(addrs[0], &immediate_call("a").with_disconnect_grace(0)).await;
    deployment.brokers[0].terminate();
    let started_at = Instant::now();
    let within = wait_for_reconnect_request(&mut stream).await;
    assert!(within <= DRAIN / 3, "{within:?}");
    while started_at.elapsed() < DRAIN * 3 / 4 {
        let sequence = stream.heartbeat().await;
        assert_eq!(stream.wait_for_ack(sequence).await, 1, "to the end");
        sleep(HEARTBEAT_INTERVAL).await;
    }
    assert_eq!(deployment.brokers[0].wait_for_exit().await, Some(0));
    let took = started_at.elapsed();
    assert!(took >= DRAIN && took < DRAIN + AT_ONCE, "{took:?}");
    let log = deployment.brokers[0].log();
    assert!(log.contains("drain_timeout has passed"), "{log}");
    let other = Client::new("other", &addrs[1..], 0);
    assert!(is_held(&other, &lease).await, "a drain gives nothing up");
    let mut next = StreamClient::open(addrs[1]).await;
    next.attach(&lease, 2).await;
    assert!(matches!(next.next_event().await, Response::Attached(_)));
}

/// Sends the headers of calls without messages, on both listeners.
async fn open_incomplete_calls(broker: &BrokerProcess) -> [RawHttp2; 2] {
    let api = "/leasehold.v1.LockService/Acquire";
    let admin = "/leasehold.v1.AdminService/OpenLock";
    let mut connections = Vec::new();
    for (listener, path) in [(broker.addr(), api), (broker.admin(), admin)] {
        let raw = RawHttp2Options::new(listener)
            .open()
            .await
            .expect("a place");
        assert!(raw.send(&frames::call_headers(1, path, 0)).await);
        assert!(raw.is_responding(TTL).await, "the head has been read");
        connections.push(raw);
    }
    connections.try_into().ok().expect("two")
}

#[tokio::test]
async fn unauthenticated_calls_do_not_delay_a_drain() {
    let mut fixture = AccessControlFixture::start(ALLOW_ALL_POLICY, &[("alice", "alice")]).await;
    let _unfinished = open_incomplete_calls(&fixture.broker).await;
    let started_at = Instant::now();
    fixture.broker.terminate();
    assert_eq!(fixture.broker.wait_for_exit().await, Some(0));
    assert!(started_at.elapsed() < AT_ONCE, "{:?}", started_at.elapsed());
}

/// Sends incomplete calls without authentication, where every caller is admitted.
#[tokio::test]
async fn missing_messages_delay_a_drain_by_at_most_a_second() {
    const A_SECOND: Duration = Duration::from_secs(1);
    let mut fixture = Deployment::start(1).await;
    let _unfinished = open_incomplete_calls(&fixture.brokers[0]).await;
    let started_at = Instant::now();
    fixture.brokers[0].terminate();
    assert_eq!(fixture.brokers[0].wait_for_exit().await, Some(0));
    assert!(
        started_at.elapsed() < A_SECOND + AT_ONCE,
        "{:?}",
        started_at.elapsed()
    );
    let log = fixture.brokers[0].log();
    assert!(!log.contains("drain_timeout has passed"), "{log}");
}

/// Spreads the reconnects, so that a thousand clients do not reach the other brokers at the same
/// moment.
#[tokio::test]
async fn clients_are_asked_to_reconnect_one_after_the_other() {
    const STREAMS: usize = 100;
    let mut deployment = Deployment::start(1).await;
    let addr = deployment.brokers[0].addr();
    let opened = (0..STREAMS).map(|index| async move {
        let lock = format!("lock-{index}");
        acquire_on_stream(addr, &immediate_call(&lock)).await.0
    });
    let mut streams = join_all(opened).await;
    deployment.brokers[0].terminate();
    let delays = join_all(streams.iter_mut().map(wait_for_reconnect_request)).await;
    let parts = [0, 1, 2, 3].map(|part| {
        let (from, to) = (
            RECONNECT_REQUESTED_WITHIN * part / 4,
            RECONNECT_REQUESTED_WITHIN * (part + 1) / 4,
        );
        delays
            .iter()
            .filter(|delay| (from..to).contains(*delay))
            .count()
    });
    assert_eq!(parts.iter().sum::<usize>(), STREAMS, "{delays:?}");
    // 25 delays are expected in each quarter. Fewer than 8 occur once in 100,000 runs.
    assert!(parts.iter().all(|part| *part >= 8), "{parts:?}");
    let moved = Instant::now();
    drop(streams);
    assert_eq!(deployment.brokers[0].wait_for_exit().await, Some(0));
    assert!(moved.elapsed() < AT_ONCE, "{:?}", moved.elapsed());
}

/// Closes the old stream before the lease is attached to the new stream. This is not a break,
/// because the client was asked to reconnect.
#[tokio::test]
async fn a_lease_whose_client_is_reconnecting_is_kept() {
    for grace in [Duration::ZERO, TTL] {
        let mut deployment = Deployment::start(2).await;
        let addrs = deployment.addrs();
        let grace_ms = u64::try_from(grace.as_millis()).expect("small");
        let (mut stream, lease) = acquire_on_stream(
            addrs[0],
            &immediate_call("a").with_disconnect_grace(grace_ms),
        )
        .await;
        deployment.brokers[0].terminate();
        wait_for_reconnect_request(&mut stream).await;
        drop(stream);
        let left = Instant::now();
        assert_eq!(deployment.brokers[0].wait_for_exit().await, Some(0));
        assert!(left.elapsed() < AT_ONCE, "{:?}", left.elapsed());
        let other = Client::new("other", &addrs[1..], 0);
        assert!(is_held(&other, &lease).await, "grace {grace:?}");
        let mut next = StreamClient::open(addrs[1]).await;
        next.attach(&lease, 2).await;
        assert!(matches!(next.next_event().await, Response::Attached(_)));
    }
}

/// Asserts also that the drain does not wait for the time in which a disconnected caller may repeat
/// its call.
#[tokio::test]
async fn a_queue_position_whose_caller_just_disconnected_is_kept() {
    let mut deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let other = Client::new("other", &addrs[1..], 0);
    let _held = other
        .acquire_at(0, &immediate_call("a"))
        .await
        .expect("it is free");
    let mut stream = StreamClient::open(addrs[0]).await;
    let on_stream = stream.acquire(&waiting_call("a"), 1).await;
    stream.next_queue_position(on_stream).await;
    let client = Client::new("worker-1", &addrs, 0);
    let unary = waiting_call("a");
    let waits = client.start_acquire_at(0, &unary);
    other.wait_for_queue_length_at(0, "a", 2).await;
    drop((stream, waits));
    // This request uses the same connection, so the broker has processed the cancellation when it
    // responds.
    client.get_lock_at(0, "a").await.expect("it is held");
    deployment.brokers[0].terminate();
    let started_at = Instant::now();
    assert_eq!(deployment.brokers[0].wait_for_exit().await, Some(0));
    assert!(started_at.elapsed() < AT_ONCE, "{:?}", started_at.elapsed());
    other.wait_for_queue_length_at(0, "a", 2).await;
    let again = client.start_acquire_at(1, &unary);
    other.wait_for_queue_length_at(0, "a", 2).await;
    assert!(!again.is_finished(), "it found its place");
}

/// Waits on a stream of the draining broker, which continues to grant locks to its waiters until
/// the client moves its waits.
#[tokio::test]
async fn a_wait_on_a_stream_is_granted_while_its_client_moves() {
    let mut deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let other = Client::new("other", &addrs[1..], 0);
    let held = other
        .acquire_at(0, &immediate_call("a"))
        .await
        .expect("it is free");
    let (mut stream, _kept) = acquire_on_stream(addrs[0], &immediate_call("b")).await;
    let call = stream.acquire(&waiting_call("a"), 1).await;
    stream.next_queue_position(call).await;
    deployment.brokers[0].terminate();
    wait_for_reconnect_request(&mut stream).await;
    other.release_at(0, &held).await.expect("the holder");
    let lease = stream.expect_granted(call).await;
    let mut next = StreamClient::open(addrs[1]).await;
    next.attach(&lease, 2).await;
    assert!(matches!(next.next_event().await, Response::Attached(_)));
    drop(stream);
    assert_eq!(deployment.brokers[0].wait_for_exit().await, Some(0));
    let sequence = next.heartbeat().await;
    assert_eq!(next.wait_for_ack(sequence).await, 1);
}

/// Asserts that the draining broker continues to check its queue, because an expiry sends no
/// message.
#[tokio::test]
async fn a_waiter_on_a_stream_of_a_draining_broker_is_granted_after_an_expiry() {
    let mut deployment = Deployment::start(1).await;
    let addr = deployment.brokers[0].addr();
    let gone = AcquireCall::new("a", Duration::from_secs(3), Duration::ZERO);
    let other = Client::new("other", &[addr], 0);
    other.acquire_at(0, &gone).await.expect("it is free");
    let (mut stream, _kept) = acquire_on_stream(addr, &immediate_call("b")).await;
    let call = stream.acquire(&waiting_call("a"), 1).await;
    stream.next_queue_position(call).await;
    deployment.brokers[0].terminate();
    wait_for_reconnect_request(&mut stream).await;
    stream.expect_granted(call).await;
    drop(stream);
    assert_eq!(deployment.brokers[0].wait_for_exit().await, Some(0));
}

/// Routes a new connection to the draining broker, as a load balancer does that has not noticed the
/// drain. The connection must not stay open until the broker exits.
#[tokio::test]
async fn a_connection_opened_during_a_drain_soon_receives_goaway() {
    const GOAWAY: u8 = 7;
    let mut deployment = Deployment::start(1).await;
    let addr = deployment.brokers[0].addr();
    let proxy = Http2Proxy::start(addr).await;
    let (mut stream, _lease) = acquire_on_stream(addr, &immediate_call("a")).await;
    deployment.brokers[0].terminate();
    wait_for_reconnect_request(&mut stream).await;
    let late = Client::new("late", &[proxy.addr()], 0);
    let started_at = Instant::now();
    until("the connection is asked to end", async || {
        let refused = late.acquire_at(0, &immediate_call("b")).await;
        assert!(is_draining(&refused.expect_err("it drains")));
        (proxy.frames_from_broker(GOAWAY) > 0).then_some(())
    })
    .await;
    assert!(started_at.elapsed() < AT_ONCE, "{:?}", started_at.elapsed());
    drop(stream);
    assert_eq!(deployment.brokers[0].wait_for_exit().await, Some(0));
}

#[tokio::test]
async fn without_clients_a_drain_is_over_at_once() {
    let mut deployment = Deployment::start(1).await;
    // An idle connection receives a GOAWAY and delays the drain no further.
    let client = Client::new("idle", &deployment.addrs(), 0);
    let mut held = client
        .acquire_at(0, &immediate_call("a"))
        .await
        .expect("it is free");
    let started_at = Instant::now();
    deployment.brokers[0].terminate();
    assert_eq!(deployment.brokers[0].wait_for_exit().await, Some(0));
    assert!(started_at.elapsed() < AT_ONCE, "{:?}", started_at.elapsed());
    deployment.brokers[0].restart().await;
    client
        .renew(&mut held)
        .await
        .expect("a lease is its holder's");
}
