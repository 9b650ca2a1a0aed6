//! Calls that are repeated while earlier attempts are open. Cancelling one attempt never affects
//! what another attempt has acquired.

use std::time::Duration;

use leasehold_proto::v1::{AcquireRequest, ErrorReason, hold_response::Message as Response};
use leasehold_tests::{
    broker::{deployment::Deployment, process::BrokerOptions},
    client::{
        stream::StreamClient,
        unary::{AcquireCall, Client},
    },
    net::raw_http2::{
        RawHttp2Options,
        frames::{self, END_STREAM, INITIAL_WINDOW_SIZE, message, reset},
    },
    redis::server::RedisServer,
    status::error_reason,
    until::until,
};
use tokio::time::timeout;

const ACQUIRE: &str = "/leasehold.v1.LockService/Acquire";
const LOCK: &str = "a-lock";
const TTL: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(60);
/// Time limit far below the validity of a lease that has no client.
const TIME_LIMIT: Duration = Duration::from_secs(20);

fn immediate_call() -> AcquireCall {
    AcquireCall::new(LOCK, TTL, Duration::ZERO)
}

fn waiting_call() -> AcquireCall {
    AcquireCall::new(LOCK, TTL, WAIT)
}

/// Repeats the call on streams with a flow-control window of 0, so that the responses are never
/// delivered, and resets these streams.
#[tokio::test]
async fn cancelling_undelivered_repeats_keeps_the_lease_of_the_first_attempt() {
    const REPEATS: u32 = 9;
    let redis = RedisServer::start().await;
    let mut options = BrokerOptions::for_store(redis.url());
    let debug = ("LEASEHOLD__LOG__FILTER".to_owned(), "debug".to_owned());
    options.env.push(debug);
    let deployment = Deployment::start_on(redis, &options, 1).await;
    let addr = deployment.addrs()[0];
    let holder = Client::new("holder", &[addr], 0);
    let other = Client::new("other", &[addr], 0);
    let call = immediate_call();
    let mut held = holder.acquire_at(0, &call).await.expect("it is free");
    let shut = RawHttp2Options {
        settings: vec![(INITIAL_WINDOW_SIZE, 0)],
        ..RawHttp2Options::new(addr)
    };
    let raw = shut.open().await.expect("a place");
    let request = holder.acquire_request(&call);
    let streams: Vec<u32> = (0..REPEATS).map(|repeat| 2 * repeat + 1).collect();
    let repeat = |&stream: &u32| {
        let body = message(stream, &request, END_STREAM);
        [frames::call_headers(stream, ACQUIRE, 0), body].concat()
    };
    let repeats: Vec<_> = streams.iter().map(repeat).collect();
    assert!(raw.send(&repeats.concat()).await, "{:?}", raw.received());
    let granted = raw
        .wait_until(TIME_LIMIT, |seen| seen.headers == streams.len())
        .await;
    let granted = granted.unwrap_or_else(|| panic!("not all are answered: {:?}", raw.received()));
    assert_eq!(granted.data_bytes, 0, "one was delivered");
    let resets: Vec<_> = streams.iter().map(|&stream| reset(stream)).collect();
    assert!(raw.send(&resets.concat()).await, "{:?}", raw.received());
    until("all repeats are taken back", async || {
        let log = deployment.brokers[0].log();
        (log.matches("rolled back an attempt").count() >= streams.len()).then_some(())
    })
    .await;
    let refused = other.acquire_at(0, &immediate_call()).await;
    let refused = refused.expect_err("the holder trusts its lease");
    assert_eq!(error_reason(&refused), Some(ErrorReason::LockHeld));
    holder.renew(&mut held).await.expect("it is held");
}

#[tokio::test]
async fn wait_timeout_beside_a_queued_attempt_fails_with_still_queued() {
    let deployment = Deployment::start(2).await;
    let client = Client::new("worker", &deployment.addrs(), 0);
    let held = client
        .acquire_at(0, &immediate_call())
        .await
        .expect("it is free");
    let call = waiting_call();
    let older = client.start_acquire_at(0, &call);
    client.wait_for_queue_length_at(0, LOCK, 1).await;
    let newer = AcquireCall {
        wait: Duration::from_millis(300),
        ..call
    };
    let status = client.acquire_at(1, &newer).await.expect_err("it is held");
    assert_eq!(
        error_reason(&status),
        Some(ErrorReason::StillQueued),
        "{status}"
    );
    client.release_at(0, &held).await.expect("the holder");
    older
        .await
        .expect("no panic")
        .expect("the older attempt is handed the lock");
}

#[tokio::test]
async fn cancelling_the_newer_of_two_attempts_on_streams_dequeues_the_call() {
    let deployment = Deployment::start(2).await;
    let addrs = deployment.addrs();
    let client = Client::new("worker", &addrs, 0);
    let held = client
        .acquire_at(0, &immediate_call())
        .await
        .expect("it is free");
    let call = waiting_call();
    let [older, newer] = [addrs[0], addrs[1]].map(StreamClient::open);
    let (mut older, mut newer) = (older.await, newer.await);
    let on_older = older.acquire(&call, 1).await;
    client.wait_for_queue_length_at(0, LOCK, 1).await;
    let on_newer = newer.acquire(&call, 2).await;
    newer.next_queue_position(on_newer).await;
    let next = client.start_acquire_at(0, &waiting_call());
    client.wait_for_queue_length_at(0, LOCK, 2).await;
    newer.cancel(on_newer).await;
    let refused = newer.expect_refused(on_newer).await;
    assert_eq!(refused.reason(), ErrorReason::Cancelled);
    client.release_at(0, &held).await.expect("the holder");
    let next = timeout(TIME_LIMIT, next)
        .await
        .expect("the lock is not held without a caller");
    next.expect("no panic").expect("it is the next waiter");
    older.cancel(on_older).await;
    let refused = older.expect_refused(on_older).await;
    assert_eq!(refused.reason(), ErrorReason::Cancelled);
}

/// Two calls add a lock to a lease; the lease and one of the calls move to a newer stream.
#[tokio::test]
async fn a_call_that_stays_on_the_older_stream_of_its_lease_leaves_the_queue() {
    let deployment = Deployment::start(1).await;
    let addr = deployment.addrs()[0];
    let client = Client::new("worker", &[addr], 0);
    let held = client
        .acquire_at(0, &immediate_call())
        .await
        .expect("it is free");
    let [older, newer] = [(); 2].map(|()| StreamClient::open(addr));
    let (mut older, mut newer) = (older.await, newer.await);
    let first_lock = AcquireCall::new("another-lock", TTL, Duration::ZERO);
    let granted = older.acquire(&first_lock, 1).await;
    let lease = older.expect_granted(granted).await;
    let [moving, staying] = [(); 2].map(|()| AcquireRequest {
        under: Some(lease.clone()),
        ..client.acquire_request(&waiting_call())
    });
    older.send_acquire(moving.clone(), 1).await;
    client.wait_for_queue_length_at(0, LOCK, 1).await;
    let staying = older.send_acquire(staying, 1).await;
    client.wait_for_queue_length_at(0, LOCK, 2).await;
    newer.attach(&lease, 2).await;
    let attached = |message| matches!(message, Response::Attached(_)).then_some(());
    newer.wait_for(attached).await;
    let moved = newer.send_acquire(moving, 2).await;
    newer.next_queue_position(moved).await;
    client.release_at(0, &held).await.expect("the holder");
    newer.expect_granted(moved).await;
    let reason = older.wait_for(|message| {
        if let Response::Refused(refused) = &message
            && refused.call_id == staying
        {
            return Some(refused.reason());
        }
        None
    });
    assert_eq!(reason.await, ErrorReason::StaleAttach);
    let state = client.get_lock_at(0, LOCK).await.expect("it is held");
    assert_eq!(state.queue_length, 0, "{state:?}");
}
