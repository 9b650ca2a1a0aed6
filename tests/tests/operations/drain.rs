//! A broker that is stopped in good order: what it goes on doing for whom, when it ends, and what it
//! leaves alone.

use std::{net::SocketAddr, time::Duration};

use futures::future::join_all;
use leasehold_proto::v1::{
    ErrorReason, Lease, hold_response::Message as Response, lock_service_client::LockServiceClient,
};
use leasehold_tests::{
    broker_process::{BrokerOptions, BrokerProcess},
    client::{AcquireCall, Client, Held, channel},
    deployment::Deployment,
    guarded::{EVERYTHING, Guarded},
    health::{LIVENESS, READINESS, check},
    plain_http::get,
    proxy::Proxy,
    raw_http2::{Opening, RawHttp2, frames},
    redis_server::RedisServer,
    status::reason,
    stream_client::StreamClient,
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
/// A third of the default drain_timeout.
const ASKED_WITHIN: Duration = Duration::from_millis(3_333);
/// Much less than a drain_timeout or a disconnect_grace.
const AT_ONCE: Duration = Duration::from_secs(1);

fn now(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

fn in_line(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::from_secs(60))
}

/// A new stream, and a lease of this call on it.
async fn holds(broker: SocketAddr, call: &AcquireCall) -> (StreamClient, Lease) {
    let mut stream = StreamClient::open(broker).await;
    let call = stream.acquire(call, 1).await;
    let lease = stream.granted(call).await;
    (stream, lease)
}

/// Waits until the client is asked to move; how long it is to wait before.
async fn asked_to_move(stream: &mut StreamClient) -> Duration {
    let Response::Reconnect(reconnect) = stream.told().await else {
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

/// What the refusal of a draining broker says: go elsewhere, now.
fn is_draining(refused: &Status) -> bool {
    let retry = refused.get_details_retry_info();
    let retry = retry.and_then(|info| info.retry_delay);
    (refused.code(), reason(refused), retry)
        == (
            Code::Unavailable,
            Some(ErrorReason::Draining),
            Some(Duration::ZERO),
        )
}

/// The broker's answer. It ends connections that nobody uses: a call that met the end of one was not sent.
async fn answer_to(client: &Client, call: &AcquireCall) -> Result<Held, Status> {
    loop {
        match client.acquire_at(0, call).await {
            Err(unsent) if unsent.code() == Code::Cancelled => {}
            answer => return answer,
        }
    }
}

#[tokio::test]
async fn a_draining_broker_takes_nothing_new_and_serves_what_there_is() {
    let mut deployment = Deployment::start(1).await;
    let addr = deployment.brokers[0].addr();
    let before = Client::new("before", &[addr], 0);
    let kept = before.acquire_at(0, &now("kept")).await.expect("free");
    let given = before.acquire_at(0, &now("given")).await.expect("free");
    let (mut stream, lease) = holds(addr, &now("streamed")).await;
    let (other, _left) = holds(addr, &now("left")).await;
    let waits = before.open_at(0, &in_line("kept"));
    before.queued_at(0, "kept", 1).await;
    deployment.brokers[0].terminate();
    assert!(asked_to_move(&mut stream).await <= ASKED_WITHIN);

    let waited = waits.await.expect("no panic").expect_err("it drains");
    assert!(is_draining(&waited), "{waited:?}");
    // Whoever was led here a moment ago is on a new connection.
    let after = Client::new("after", &[addr], 0);
    for client in [&before, &after] {
        for call in [now("new"), in_line("kept")] {
            let refused = answer_to(client, &call).await.expect_err("it drains");
            assert!(is_draining(&refused), "{refused:?}");
        }
    }
    let requests = tokio_stream::pending();
    let refused = LockServiceClient::new(channel(addr)).hold(requests).await;
    let refused = refused.expect_err("a new stream is for another broker");
    assert!(is_draining(&refused), "{refused:?}");
    let late = stream.acquire(&now("new"), 1).await;
    let refused = stream.refused(late).await;
    assert_eq!(refused.reason(), ErrorReason::Draining);
    assert_eq!(refused.retry_after, Some(prost_types::Duration::default()));

    let kept = before.renew_at(0, &kept).await.expect("still served");
    after.renew_at(0, &kept).await.expect("still served");
    after.release_at(0, &given).await.expect("still served");
    let is_free = after.get_lock_at(0, "given").await;
    assert_eq!(is_free.map_err(|status| status.code()), Err(Code::NotFound));
    for _ in 0..3 {
        let sequence = stream.heartbeat().await;
        assert_eq!(stream.acknowledged(sequence).await, 1);
    }
    let admin = deployment.brokers[0].admin();
    for listener in [addr, admin] {
        for name in READINESS {
            let said = check(listener, name).await.expect("a known name");
            assert_eq!(said, ServingStatus::NotServing);
        }
        let said = check(listener, LIVENESS).await.expect("a known name");
        assert_eq!(said, ServingStatus::Serving);
    }
    assert_eq!(get(admin, "/readyz").await, (503, "draining".to_owned()));
    assert_eq!(get(admin, "/livez").await, (200, "ok".to_owned()));
    let call = stream.release(&lease.lease_id).await;
    let Response::Released(released) = stream.told().await else {
        panic!("not released");
    };
    assert_eq!(released.call_id, call);

    drop((stream, other));
    let moved = Instant::now();
    assert_eq!(deployment.brokers[0].ended().await, Some(0));
    assert!(moved.elapsed() < AT_ONCE, "{:?}", moved.elapsed());
}

/// Neither who obeys nothing, nor who says nothing, nor who reads nothing can hold it up for ever.
#[tokio::test]
async fn who_does_not_react_is_cut_by_drain_timeout() {
    /// A stream takes 20 heartbeats a second.
    const BEAT: Duration = Duration::from_millis(100);
    const DRAIN: Duration = Duration::from_secs(3);
    let redis = RedisServer::start().await;
    let mut options = BrokerOptions::on(redis.url());
    let setting = ("LEASEHOLD__SERVER__DRAIN_TIMEOUT", "3s");
    options
        .env
        .push((setting.0.to_owned(), setting.1.to_owned()));
    let mut deployment = Deployment::start_on(redis, &options, 2).await;
    let addrs = deployment.addrs();
    let _silent = TcpStream::connect(addrs[0]).await.expect("it listens");
    let (mut stream, lease) = holds(addrs[0], &now("a").with_grace(0)).await;
    deployment.brokers[0].terminate();
    let begun = Instant::now();
    let within = asked_to_move(&mut stream).await;
    assert!(within <= DRAIN / 3, "{within:?}");
    while begun.elapsed() < DRAIN * 3 / 4 {
        let sequence = stream.heartbeat().await;
        assert_eq!(stream.acknowledged(sequence).await, 1, "to the end");
        sleep(BEAT).await;
    }
    assert_eq!(deployment.brokers[0].ended().await, Some(0));
    let took = begun.elapsed();
    assert!(took >= DRAIN && took < DRAIN + AT_ONCE, "{took:?}");
    let log = deployment.brokers[0].log();
    assert!(log.contains("drain_timeout has passed"), "{log}");
    let other = Client::new("other", &addrs[1..], 0);
    assert!(is_held(&other, &lease).await, "a drain gives nothing up");
    let mut next = StreamClient::open(addrs[1]).await;
    next.attach(&lease, 2).await;
    assert!(matches!(next.told().await, Response::Attached(_)));
}

/// Heads of calls without messages, on both listeners.
async fn unfinished(broker: &BrokerProcess) -> [RawHttp2; 2] {
    let api = "/leasehold.v1.LockService/Acquire";
    let admin = "/leasehold.v1.AdminService/SetLockLimit";
    let mut connections = Vec::new();
    for (listener, path) in [(broker.addr(), api), (broker.admin(), admin)] {
        let raw = Opening::to(listener).open().await.expect("a place");
        assert!(raw.send(&frames::call(1, path, 0)).await);
        assert!(raw.lives(TTL).await, "the head has been read");
        connections.push(raw);
    }
    connections.try_into().ok().expect("two")
}

#[tokio::test]
async fn calls_of_strangers_do_not_hold_a_drain_up() {
    let mut site = Guarded::start(EVERYTHING, &[("alice", "alice")]).await;
    let _unfinished = unfinished(&site.broker).await;
    let begun = Instant::now();
    site.broker.terminate();
    assert_eq!(site.broker.ended().await, Some(0));
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
}

/// Where nobody is asked who they are, everybody is admitted.
#[tokio::test]
async fn messages_that_do_not_come_hold_a_drain_up_for_a_second() {
    const A_SECOND: Duration = Duration::from_secs(1);
    let mut site = Deployment::start(1).await;
    let _unfinished = unfinished(&site.brokers[0]).await;
    let begun = Instant::now();
    site.brokers[0].terminate();
    assert_eq!(site.brokers[0].ended().await, Some(0));
    assert!(
        begun.elapsed() < A_SECOND + AT_ONCE,
        "{:?}",
        begun.elapsed()
    );
    let log = site.brokers[0].log();
    assert!(!log.contains("drain_timeout has passed"), "{log}");
}

/// So that a thousand clients do not come to the other brokers at one moment.
#[tokio::test]
async fn clients_are_asked_to_move_one_after_the_other() {
    const STREAMS: usize = 100;
    let mut deployment = Deployment::start(1).await;
    let addr = deployment.brokers[0].addr();
    let opened = (0..STREAMS).map(|index| async move {
        let lock = format!("lock-{index}");
        holds(addr, &now(&lock)).await.0
    });
    let mut streams = join_all(opened).await;
    deployment.brokers[0].terminate();
    let delays = join_all(streams.iter_mut().map(asked_to_move)).await;
    let parts = [0, 1, 2, 3].map(|part| {
        let (from, to) = (ASKED_WITHIN * part / 4, ASKED_WITHIN * (part + 1) / 4);
        delays
            .iter()
            .filter(|delay| (from..to).contains(*delay))
            .count()
    });
    assert_eq!(parts.iter().sum::<usize>(), STREAMS, "{delays:?}");
    // 25 are expected in each quarter; fewer than 8 come once in 100,000 runs.
    assert!(parts.iter().all(|part| *part >= 8), "{parts:?}");
    let moved = Instant::now();
    drop(streams);
    assert_eq!(deployment.brokers[0].ended().await, Some(0));
    assert!(moved.elapsed() < AT_ONCE, "{:?}", moved.elapsed());
}

/// A client may leave the old stream before its lease is attached to the new one. That is no break,
/// since it was asked to.
#[tokio::test]
async fn a_lease_whose_client_is_on_its_way_is_not_given_up() {
    for grace in [Duration::ZERO, TTL] {
        let mut deployment = Deployment::start(2).await;
        let addrs = deployment.addrs();
        let grace_ms = u64::try_from(grace.as_millis()).expect("small");
        let (mut stream, lease) = holds(addrs[0], &now("a").with_grace(grace_ms)).await;
        deployment.brokers[0].terminate();
        asked_to_move(&mut stream).await;
        drop(stream);
        let left = Instant::now();
        assert_eq!(deployment.brokers[0].ended().await, Some(0));
        assert!(left.elapsed() < AT_ONCE, "{:?}", left.elapsed());
        let other = Client::new("other", &addrs[1..], 0);
        assert!(is_held(&other, &lease).await, "grace {grace:?}");
        let mut next = StreamClient::open(addrs[1]).await;
        next.attach(&lease, 2).await;
        assert!(matches!(next.told().await, Response::Attached(_)));
    }
}

/// Nor does it wait for the time in which who broke off before would have come again.
#[tokio::test]
async fn a_place_whose_caller_broke_off_just_before_is_not_given_up() {
    let mut deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let other = Client::new("other", &addrs[1..], 0);
    let _held = other.acquire_at(0, &now("a")).await.expect("it is free");
    let mut stream = StreamClient::open(addrs[0]).await;
    let on_stream = stream.acquire(&in_line("a"), 1).await;
    stream.queued(on_stream).await;
    let client = Client::new("worker-1", &addrs, 0);
    let unary = in_line("a");
    let waits = client.open_at(0, &unary);
    other.queued_at(0, "a", 2).await;
    drop((stream, waits));
    // On the same connection: what was cancelled is known when this is answered.
    client.get_lock_at(0, "a").await.expect("it is held");
    deployment.brokers[0].terminate();
    let begun = Instant::now();
    assert_eq!(deployment.brokers[0].ended().await, Some(0));
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    other.queued_at(0, "a", 2).await;
    let again = client.open_at(1, &unary);
    other.queued_at(0, "a", 2).await;
    assert!(!again.is_finished(), "it found its place");
}

/// A wait on a stream goes on at the draining broker, and is granted there if its turn comes, until
/// its client takes it along.
#[tokio::test]
async fn a_wait_on_a_stream_is_granted_while_its_client_moves() {
    let mut deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let other = Client::new("other", &addrs[1..], 0);
    let held = other.acquire_at(0, &now("a")).await.expect("it is free");
    let (mut stream, _kept) = holds(addrs[0], &now("b")).await;
    let call = stream.acquire(&in_line("a"), 1).await;
    stream.queued(call).await;
    deployment.brokers[0].terminate();
    asked_to_move(&mut stream).await;
    other.release_at(0, &held).await.expect("the holder");
    let lease = stream.granted(call).await;
    let mut next = StreamClient::open(addrs[1]).await;
    next.attach(&lease, 2).await;
    assert!(matches!(next.told().await, Response::Attached(_)));
    drop(stream);
    assert_eq!(deployment.brokers[0].ended().await, Some(0));
    let sequence = next.heartbeat().await;
    assert_eq!(next.acknowledged(sequence).await, 1);
}

/// No message tells of an expiry: the draining broker looks after its line itself.
#[tokio::test]
async fn a_waiter_on_a_stream_of_a_draining_broker_is_granted_after_an_expiry() {
    let mut deployment = Deployment::start(1).await;
    let addr = deployment.brokers[0].addr();
    let gone = AcquireCall::new("a", Duration::from_secs(3), Duration::ZERO);
    let other = Client::new("other", &[addr], 0);
    other.acquire_at(0, &gone).await.expect("it is free");
    let (mut stream, _kept) = holds(addr, &now("b")).await;
    let call = stream.acquire(&in_line("a"), 1).await;
    stream.queued(call).await;
    deployment.brokers[0].terminate();
    asked_to_move(&mut stream).await;
    stream.granted(call).await;
    drop(stream);
    assert_eq!(deployment.brokers[0].ended().await, Some(0));
}

/// A balancer that has not noticed yet leads new connections to a draining broker. They must not
/// stay there until it ends.
#[tokio::test]
async fn a_connection_that_comes_late_is_told_to_go_soon() {
    const GOAWAY: u8 = 7;
    let mut deployment = Deployment::start(1).await;
    let addr = deployment.brokers[0].addr();
    let proxy = Proxy::start(addr).await;
    let (mut stream, _lease) = holds(addr, &now("a")).await;
    deployment.brokers[0].terminate();
    asked_to_move(&mut stream).await;
    let late = Client::new("late", &[proxy.addr()], 0);
    let begun = Instant::now();
    until("the connection is told to end", async || {
        let refused = late.acquire_at(0, &now("b")).await;
        assert!(is_draining(&refused.expect_err("it drains")));
        (proxy.from_broker(GOAWAY) > 0).then_some(())
    })
    .await;
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    drop(stream);
    assert_eq!(deployment.brokers[0].ended().await, Some(0));
}

#[tokio::test]
async fn without_clients_a_drain_is_over_at_once() {
    let mut deployment = Deployment::start(1).await;
    // An idle connection is told that it ends, and needs no more.
    let client = Client::new("idle", &deployment.addrs(), 0);
    let mut held = client.acquire_at(0, &now("a")).await.expect("it is free");
    let begun = Instant::now();
    deployment.brokers[0].terminate();
    assert_eq!(deployment.brokers[0].ended().await, Some(0));
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    deployment.brokers[0].restart().await;
    client
        .renew(&mut held)
        .await
        .expect("a lease is its holder's");
}
