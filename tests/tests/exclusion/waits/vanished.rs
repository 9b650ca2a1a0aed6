//! Callers, replies and brokers that vanish at the worst moment: no ghost in line, no lock that nobody
//! knows of, no hand-off announced that had lapsed.

#![expect(
    clippy::disallowed_methods,
    reason = "a waiting call is a task of the test"
)]

use std::{pin::pin, time::Duration};

use futures::future::join_all;
use leasehold_proto::v1::{ErrorReason, lock_service_client::LockServiceClient};
use leasehold_tests::{
    broker_process::{BrokerOptions, KEY_PREFIX},
    client::{AcquireCall, Client},
    clock::boottime,
    deployment::Deployment,
    health::has_read,
    proxy::Proxy,
    redis_server::RedisServer,
    scale::figures,
    status::reason,
};
use tokio::time::timeout;
use tonic::{Code, Status, transport::Endpoint};

const LOCK: &str = "a-lock";
const TTL: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(60);
/// Much less than the 60 s after which the store frees a lock by itself.
const SOON: Duration = Duration::from_secs(10);

fn now(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

fn in_line() -> AcquireCall {
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
async fn a_wait_that_timed_out_has_left_the_line() {
    let deployment = Deployment::start(1).await;
    let client = Client::new("worker-1", &deployment.addrs(), 0);
    let held = client.acquire_at(0, &now(LOCK)).await.expect("it is free");
    let short = AcquireCall::new(LOCK, TTL, Duration::from_millis(300));
    let status = client.acquire_at(0, &short).await.expect_err("it is held");
    assert_eq!(reason(&status), Some(ErrorReason::WaitTimeout));
    assert_eq!(queue_length(&client, 0).await, 0);
    client.release_at(0, &held).await.expect("the holder");
}

#[tokio::test]
async fn locks_granted_to_callers_that_are_gone_are_released() {
    const CALLERS: usize = 50;
    let deployment = Deployment::start(1).await;
    let proxy = Proxy::start(deployment.addrs()[0]).await;
    let client = Client::new("worker-1", &[proxy.addr(), deployment.addrs()[0]], 0);
    let locks: Vec<_> = (0..CALLERS).map(|index| format!("gone-{index}")).collect();
    let probe = client.get_lock_at(0, "nobody-s").await;
    probe.expect_err("connected, and nobody holds it");
    let redis = deployment.redis.process();
    redis.pause().await;
    let before = proxy.requests();
    let calls = locks.iter().map(|lock| client.open_at(0, &now(lock)));
    let calls: Vec<_> = calls.collect();
    proxy.wait_for_requests(before + CALLERS).await;
    has_read(deployment.addrs()[0]).await;
    proxy.cut().await;
    for call in calls {
        call.await.expect("no panic").expect_err("it was cut");
    }
    has_read(deployment.addrs()[0]).await;
    redis.resume();
    let look = || join_all(locks.iter().map(|lock| client.get_lock_at(1, lock)));
    let granted = look().await.iter().filter(|lock| lock.is_ok()).count();
    assert!(granted > 0, "Redis granted locks to callers that were gone");
    let resumed_at = boottime();
    while look().await.iter().any(Result::is_ok) {
        assert!(boottime() < resumed_at + SOON, "locks that nobody knows of");
    }
    figures(&format!(
        "vanished: callers={CALLERS} granted={granted} all_given_back_after={}ms",
        (boottime() - resumed_at).as_millis()
    ));
}

#[tokio::test]
async fn a_lock_granted_after_the_broker_gave_up_is_given_back() {
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
                    boottime() < answered_at + SOON,
                    "a lock that nobody knows of"
                );
            }
            return;
        }
    }
    panic!("in none of {ROUNDS} rounds was a lock granted after its caller had got an error");
}

/// Makes Redis grant a lock and hold every reply back until the broker has given the call up. Returns whether
/// that happened: Redis may read the two commands in the other order, or the broker may send the call late.
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
    let call = client.open_at(0, &now(lock));
    has_read(deployment.addrs()[0]).await;
    // Redis reads the acquire and this in one go, and sends the replies after both.
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
            assert_eq!(reason(&status), Some(ErrorReason::StoreUnavailable));
            granted
        }
    }
}

#[tokio::test]
async fn a_holder_that_vanished_is_followed_when_its_lease_has_expired() {
    const SHORT: Duration = Duration::from_secs(1);
    let deployment = Deployment::start(2).await;
    let client = Client::new("worker-1", &deployment.addrs(), 0);
    let short = AcquireCall::new(LOCK, SHORT, Duration::ZERO);
    let held = client.acquire_at(0, &short).await.expect("it is free");
    let next = client.open_at(1, &in_line()).await.expect("no panic");
    let next = next.expect("its turn");
    let after = boottime() - held.sent;
    figures(&format!(
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
    let mut options = BrokerOptions::on(redis.url());
    // Q is E(2 s) and 1 s.
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
    client.acquire_at(0, &now(LOCK)).await.expect("it is free");
    let waiters = [client.open_at(0, &in_line()), client.open_at(1, &in_line())];
    client.queued_at(0, LOCK, 2).await;
    let mut raw = deployment.redis.connect().await;
    raw.must(&["FLUSHALL"]).await;
    for waiter in waiters {
        let granted = timeout(2 * SOON, waiter).await.expect("in time");
        granted.expect("no panic").expect("its turn");
    }
}

#[tokio::test]
async fn a_hand_off_that_lapsed_is_not_announced() {
    let deployment = Deployment::start(2).await;
    let client = Client::new("worker-1", &deployment.addrs(), 0);
    let first = client.acquire_at(0, &now(LOCK)).await.expect("it is free");
    // A caller that does not notice that its broker is stopped.
    let patient = Endpoint::from_shared(format!("http://{}", deployment.addrs()[1]));
    let mut patient = LockServiceClient::new(patient.expect("an address").connect_lazy());
    let call = client.acquire_request(&in_line());
    let mut stalled = tokio::spawn(async move { patient.acquire(call).await });
    client.queued_at(0, LOCK, 1).await;
    let behind = client.open_at(0, &in_line());
    client.queued_at(0, LOCK, 2).await;
    has_read(deployment.addrs()[1]).await;
    let broker = deployment.brokers[1].process();
    broker.pause().await;
    client.release_at(0, &first).await.expect("the holder");
    // The hand-off to the stopped broker lapses, and the lock goes to the next in line.
    let next = behind.await.expect("no panic").expect("its turn");
    assert_eq!(holder(&client, 0).await, Some(next.token()));
    broker.resume();
    // Its broker reads of the old hand-off before it can answer this.
    assert_eq!(queue_length(&client, 1).await, 1);
    assert_eq!(holder(&client, 1).await, Some(next.token()));
    let answer = futures::poll!(&mut stalled);
    assert!(answer.is_pending(), "somebody else holds it: {answer:?}");
    client.release_at(0, &next).await.expect("the holder");
    let last = stalled.await.expect("no panic").expect("its turn");
    let last = last.into_inner().lease.expect("a lease").grants[0].fencing_token;
    assert!(first.token() < next.token() && next.token() < last);
}
