//! Calls that are sent again while earlier attempts are under way: undoing one attempt never takes away what
//! another has.

use std::time::Duration;

use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    broker_process::BrokerOptions,
    client::{AcquireCall, Client},
    deployment::Deployment,
    raw_http2::{
        Opening,
        frames::{self, END_STREAM, INITIAL_WINDOW_SIZE, message, reset},
    },
    redis_server::RedisServer,
    status::reason,
    stream_client::StreamClient,
    until::until,
};
use tokio::time::timeout;

const ACQUIRE: &str = "/leasehold.v1.LockService/Acquire";
const LOCK: &str = "a-lock";
const TTL: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(60);
/// Much less than the validity of a lease that nobody knows of.
const SOON: Duration = Duration::from_secs(20);

fn now() -> AcquireCall {
    AcquireCall::new(LOCK, TTL, Duration::ZERO)
}

fn in_line() -> AcquireCall {
    AcquireCall::new(LOCK, TTL, WAIT)
}

/// The answers to the repeats are never delivered: their client takes no byte of a message, and gives them up.
#[tokio::test]
async fn cancelling_undelivered_repeats_keeps_the_lease_of_the_first_attempt() {
    const REPEATS: u32 = 9;
    let redis = RedisServer::start().await;
    let mut options = BrokerOptions::on(redis.url());
    let debug = ("LEASEHOLD__LOG__FILTER".to_owned(), "debug".to_owned());
    options.env.push(debug);
    let deployment = Deployment::start_on(redis, &options, 1).await;
    let addr = deployment.addrs()[0];
    let holder = Client::new("holder", &[addr], 0);
    let other = Client::new("other", &[addr], 0);
    let call = now();
    let mut held = holder.acquire_at(0, &call).await.expect("it is free");
    let shut = Opening {
        settings: vec![(INITIAL_WINDOW_SIZE, 0)],
        ..Opening::to(addr)
    };
    let raw = shut.open().await.expect("a place");
    let request = holder.acquire_request(&call);
    let streams: Vec<u32> = (0..REPEATS).map(|repeat| 2 * repeat + 1).collect();
    let repeat = |&stream: &u32| {
        let body = message(stream, &request, END_STREAM);
        [frames::call(stream, ACQUIRE, 0), body].concat()
    };
    let repeats: Vec<_> = streams.iter().map(repeat).collect();
    assert!(raw.send(&repeats.concat()).await, "{:?}", raw.seen());
    let granted = raw.until(SOON, |seen| seen.heads == streams.len()).await;
    let granted = granted.unwrap_or_else(|| panic!("not all are answered: {:?}", raw.seen()));
    assert_eq!(granted.data, 0, "one was delivered");
    let resets: Vec<_> = streams.iter().map(|&stream| reset(stream)).collect();
    assert!(raw.send(&resets.concat()).await, "{:?}", raw.seen());
    until("all repeats are taken back", async || {
        let log = deployment.brokers[0].log();
        (log.matches("took back an attempt").count() >= streams.len()).then_some(())
    })
    .await;
    let refused = other.acquire_at(0, &now()).await;
    let refused = refused.expect_err("the holder trusts its lease");
    assert_eq!(reason(&refused), Some(ErrorReason::LockHeld));
    holder.renew(&mut held).await.expect("it is held");
}

#[tokio::test]
async fn wait_timeout_beside_a_queued_attempt_fails_with_still_queued() {
    let deployment = Deployment::start(2).await;
    let client = Client::new("worker", &deployment.addrs(), 0);
    let held = client.acquire_at(0, &now()).await.expect("it is free");
    let call = in_line();
    let older = client.open_at(0, &call);
    client.queued_at(0, LOCK, 1).await;
    let newer = AcquireCall {
        wait: Duration::from_millis(300),
        ..call
    };
    let status = client.acquire_at(1, &newer).await.expect_err("it is held");
    assert_eq!(reason(&status), Some(ErrorReason::StillQueued), "{status}");
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
    let held = client.acquire_at(0, &now()).await.expect("it is free");
    let call = in_line();
    let [older, newer] = [addrs[0], addrs[1]].map(StreamClient::open);
    let (mut older, mut newer) = (older.await, newer.await);
    let on_older = older.acquire(&call, 1).await;
    client.queued_at(0, LOCK, 1).await;
    let on_newer = newer.acquire(&call, 2).await;
    newer.queued(on_newer).await;
    let next = client.open_at(0, &in_line());
    client.queued_at(0, LOCK, 2).await;
    newer.cancel(on_newer).await;
    let refused = newer.refused(on_newer).await;
    assert_eq!(refused.reason(), ErrorReason::Cancelled);
    client.release_at(0, &held).await.expect("the holder");
    let next = timeout(SOON, next)
        .await
        .expect("the lock is not held for nobody");
    next.expect("no panic").expect("it is the next in line");
    older.cancel(on_older).await;
    let refused = older.refused(on_older).await;
    assert_eq!(refused.reason(), ErrorReason::Cancelled);
}
