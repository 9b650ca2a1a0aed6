//! Callers, replies and brokers that disappear at the worst moment. No orphaned waiter stays in the
//! queue, no lock stays held without a client, and no lapsed hand-off is announced.

#![expect(
    clippy::disallowed_methods,
    reason = "a waiting call is a task of the test"
)]

use std::{pin::pin, time::Duration};

use futures::future::join_all;
use leasehold_proto::v1::{ErrorReason, lock_service_client::LockServiceClient};
use leasehold_tests::{
    broker::{
        deployment::Deployment,
        process::{BrokerOptions, KEY_PREFIX},
    },
    client::unary::{AcquireCall, Client},
    clock::boottime,
    net::{health::wait_until_read, http2_proxy::Http2Proxy},
    redis::server::RedisServer,
    scale::print_figures,
    status::error_reason,
    until::until,
};
use tokio::time::timeout;
use tonic::{Code, Status, transport::Endpoint};

const LOCK: &str = "a-lock";
const TTL: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(60);
/// Time limit far below the 60 s after which the store frees an unreleased lock.
const TIME_LIMIT: Duration = Duration::from_secs(10);

fn immediate_call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

fn waiting_call() -> AcquireCall {
    AcquireCall::new(LOCK, TTL, WAIT)
}

async fn queue_length(client: &Client, at: usize) -> i32 {
    let lock = client.get_lock_at(at, LOCK).await.expect("it is held");
    lock.queue_length
}

async fn holder(client: &Client, at: usize) -> Option<i64> {
    let lock = client.get_lock_at(at, LOCK).await.expect("it is held");
    lock.holders.first().map(|holder| holder.fencing_token)
}

#[tokio::test]
async fn a_wait_that_timed_out_has_left_the_queue() {
    let deployment = Deployment::start(1).await;
    let client = Client::new("worker-1", &deployment.addrs(), 0);
    let held = client
        .acquire_at(0, &immediate_call(LOCK))
        .await
        .expect("it is free");
    let short = AcquireCall::new(LOCK, TTL, Duration::from_millis(300));
    let status = client.acquire_at(0, &short).await.expect_err("it is held");
    assert_eq!(error_reason(&status), Some(ErrorReason::WaitTimeout));
    assert_eq!(queue_length(&client, 0).await, 0);
    client.release_at(0, &held).await.expect("the holder");
}

#[tokio::test]
async fn locks_granted_to_callers_that_are_gone_are_released() {
    const CALLERS: usize = 50;
    let deployment = Deployment::start(1).await;
    let proxy = Http2Proxy::start(deployment.addrs()[0]).await;
    let client = Client::new("worker-1", &[proxy.addr(), deployment.addrs()[0]], 0);
    let locks: Vec<_> = (0..CALLERS).map(|index| format!("gone-{index}")).collect();
    let probe = client.get_lock_at(0, "nobody-s").await;
    probe.expect_err("connected, and it is not held");
    let mut raw = deployment.redis.connect().await;
    raw.must(&["CLIENT", "PAUSE", "60000", "WRITE"]).await;
    let before = proxy.requests();
    let calls = locks
        .iter()
        .map(|lock| client.start_acquire_at(0, &immediate_call(lock)));
    let calls: Vec<_> = calls.collect();
    proxy.wait_for_requests(before + CALLERS).await;
    until("Redis has received an acquire", async || {
        let clients = raw.must(&["CLIENT", "LIST"]).await;
        clients.text().contains("flags=b").then_some(())
    })
    .await;
    proxy.close_connections().await;
    for call in calls {
        call.await.expect("no panic").expect_err("it was cut");
    }
    wait_until_read(deployment.addrs()[0]).await;
    raw.must(&["CLIENT", "UNPAUSE"]).await;
    let look = || join_all(locks.iter().map(|lock| client.get_lock_at(1, lock)));
    let granted = look().await.iter().filter(|lock| lock.is_ok()).count();
    assert!(granted > 0, "Redis granted locks to callers that were gone");
    let resumed_at = boottime();
    while look().await.iter().any(Result::is_ok) {
        assert!(
            boottime() < resumed_at + TIME_LIMIT,
            "locks that no caller knows of"
        );
    }
    print_figures(&format!(
        "vanished: callers={CALLERS} granted={granted} all_given_back_after={}ms",
        (boottime() - resumed_at).as_millis()
    ));
}

#[tokio::test]
async fn a_lock_granted_after_the_broker_abandoned_the_call_is_released() {
    const ROUNDS: usize = 20;
    let deployment = Deployment::start(1).await;
    let client = Client::new("worker-1", &deployment.addrs(), 0);
    for round in 0..ROUNDS {
        let lock = format!("late-{round}");
        if granted_too_late(&deployment, &client, &lock).await {
            let answered_at = boottime();
            let is_free = |status: Status| status.code() == Code::NotFound;
            while !client.get_lock_at(0, &lock).await.is_err_and(is_free) {
                assert!(
                    boottime() < answered_at + TIME_LIMIT,
                    "a lock that no caller knows of"
                );
            }
            return;
        }
    }
    panic!("in none of {ROUNDS} rounds was a lock granted after its caller had got an error");
}

/// Makes Redis grant a lock and delay every reply until the broker has abandoned the call. Returns
/// true if that happened. Redis may read the two commands in the reverse order, or the broker may
/// send the call late.
async fn granted_too_late(deployment: &Deployment, client: &Client, lock: &str) -> bool {
    const BUSY: &str =
        "local function now() local t = redis.call('TIME') return t[1] + t[2] / 1e6 end
        local begin = now()
        while now() < begin + 1.5 do end
        return redis.call('EXISTS', KEYS[1])";
    let key = format!("{KEY_PREFIX}{{default:{lock}}}");
    let mut raw = deployment.redis.connect().await;
    let redis = deployment.redis.process();
    redis.pause().await;
    let call = client.start_acquire_at(0, &immediate_call(lock));
    wait_until_read(deployment.addrs()[0]).await;
    // Redis reads the acquire and this command together, and sends the replies after both.
    let busy = ["EVAL", BUSY, "1", &key];
    let mut busy = pin!(raw.command(&busy));
    assert!(futures::poll!(&mut busy).is_pending());
    redis.resume();
    let answer = call.await.expect("no panic");
    let granted = busy.await.expect("Redis goes on").integer() == 1;
    match answer {
        Ok(held) => {
            client.release_at(0, &held).await.expect("the holder");
            false
        }
        Err(status) => {
            assert_eq!(error_reason(&status), Some(ErrorReason::StoreUnavailable));
            granted
        }
    }
}

#[tokio::test]
async fn the_next_waiter_is_granted_a_vanished_holders_lock_at_its_expiry() {
    const SHORT: Duration = Duration::from_secs(1);
    let deployment = Deployment::start(2).await;
    let client = Client::new("worker-1", &deployment.addrs(), 0);
    let short = AcquireCall::new(LOCK, SHORT, Duration::ZERO);
    let held = client.acquire_at(0, &short).await.expect("it is free");
    let next = client
        .start_acquire_at(1, &waiting_call())
        .await
        .expect("no panic");
    let next = next.expect("its turn");
    let after = boottime() - held.sent_at;
    print_figures(&format!(
        "vanished: ttl=1000ms followed_after={}ms",
        after.as_millis()
    ));
    assert!(next.token() > held.token());
    // E(1 s) is 1,450 ms.
    let in_time = Duration::from_millis(1_450)..Duration::from_millis(2_450);
    assert!(in_time.contains(&after), "{after:?}");
}

#[tokio::test]
async fn waiters_whose_queue_was_lost_are_queued_again() {
    let redis = RedisServer::start().await;
    let mut options = BrokerOptions::for_store(redis.url());
    // Q is E(2 s) + 1 s.
    for (key, value) in [
        ("LIMITS__TTL_MAX", "2s"),
        ("LIMITS__TTL_DEFAULT", "2s"),
        ("LIMITS__LOCK_DELAY_MAX", "0s"),
        ("STORE__FORMER_MASTER_MAX", "0s"),
    ] {
        let (key, value) = (format!("LEASEHOLD__{key}"), value.to_owned());
        options.env.push((key, value));
    }
    let deployment = Deployment::start_on(redis, &options, 2).await;
    let client = Client::new("worker-1", &deployment.addrs(), 0);
    client
        .acquire_at(0, &immediate_call(LOCK))
        .await
        .expect("it is free");
    let waiters = [
        client.start_acquire_at(0, &waiting_call()),
        client.start_acquire_at(1, &waiting_call()),
    ];
    client.wait_for_queue_length_at(0, LOCK, 2).await;
    let mut raw = deployment.redis.connect().await;
    raw.must(&["FLUSHALL"]).await;
    for waiter in waiters {
        let granted = timeout(2 * TIME_LIMIT, waiter).await.expect("in time");
        granted.expect("no panic").expect("its turn");
    }
}

#[tokio::test]
async fn a_hand_off_that_lapsed_is_not_announced() {
    let deployment = Deployment::start(2).await;
    let client = Client::new("worker-1", &deployment.addrs(), 0);
    let first = client
        .acquire_at(0, &immediate_call(LOCK))
        .await
        .expect("it is free");
    // This caller does not detect that its broker is stopped.
    let patient = Endpoint::from_shared(format!("http://{}", deployment.addrs()[1]));
    let mut patient = LockServiceClient::new(patient.expect("an address").connect_lazy());
    let call = client.acquire_request(&waiting_call());
    let mut stalled = tokio::spawn(async move { patient.acquire(call).await });
    client.wait_for_queue_length_at(0, LOCK, 1).await;
    let behind = client.start_acquire_at(0, &waiting_call());
    client.wait_for_queue_length_at(0, LOCK, 2).await;
    wait_until_read(deployment.addrs()[1]).await;
    let broker = deployment.brokers[1].process();
    broker.pause().await;
    client.release_at(0, &first).await.expect("the holder");
    // The hand-off to the stopped broker lapses, and the lock is handed to the next waiter.
    let next = behind.await.expect("no panic").expect("its turn");
    assert_eq!(holder(&client, 0).await, Some(next.token()));
    broker.resume();
    // The resumed broker reads the old hand-off before it can respond to this request.
    assert_eq!(queue_length(&client, 1).await, 1);
    assert_eq!(holder(&client, 1).await, Some(next.token()));
    let answer = futures::poll!(&mut stalled);
    assert!(answer.is_pending(), "another caller holds it: {answer:?}");
    client.release_at(0, &next).await.expect("the holder");
    let last = stalled.await.expect("no panic").expect("its turn");
    let last = last.into_inner().lease.expect("a lease").grants[0].fencing_token;
    assert!(first.token() < next.token() && next.token() < last);
}
