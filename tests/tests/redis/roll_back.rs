//! A Redis that comes back with older data: what ended since does not come back, and who waits waits on.

use std::time::Duration;

use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    broker_process::BrokerOptions,
    client::{AcquireCall, Client},
    deployment::Deployment,
    redis_server::RedisServer,
    status::reason,
    until::until,
};
use tonic::Status;

const TTL: Duration = Duration::from_secs(5);
const WAIT: Duration = Duration::from_secs(60);

/// One broker whose leases last 5 s at most.
async fn site() -> Deployment {
    let redis = RedisServer::start().await;
    let mut options = BrokerOptions::on(redis.url());
    let bounds = [
        ("LIMITS__TTL_MAX", "5s"),
        ("LIMITS__LOCK_DELAY_MAX", "0s"),
        ("STORE__FORMER_MASTER_MAX", "1s"),
    ];
    let settings = bounds.map(|(key, value)| (format!("LEASEHOLD__{key}"), value.to_owned()));
    options.env.extend(settings);
    Deployment::start_on(redis, &options, 1).await
}

fn call(lock: &str) -> AcquireCall {
    AcquireCall::new(lock, TTL, Duration::ZERO)
}

async fn save(site: &Deployment) {
    site.redis.connect().await.must(&["SAVE"]).await;
}

/// Brings the data back that was saved, and returns once the broker serves again.
async fn fall_back(site: &mut Deployment, client: &Client) {
    site.redis.restart().await;
    until("a store that recovers", async || {
        let refused = client.acquire_at(0, &call("a-probe")).await;
        is_recovering(refused.expect_err("nothing is granted inside Q")).then_some(())
    })
    .await;
}

fn is_recovering(status: Status) -> bool {
    reason(&status) == Some(ErrorReason::StoreRecovering)
}

#[tokio::test]
async fn a_repeat_after_a_rollback_does_not_restore_a_released_lease() {
    let mut site = site().await;
    let [one, other] = ["one", "other"].map(|name| Client::new(name, &site.addrs(), 0));
    let first = call("a-lock");
    let held = one.acquire_at(0, &first).await.expect("it is free");
    save(&site).await;
    one.release_at(0, &held).await.expect("it is held");
    let next = other
        .acquire_at(0, &call("a-lock"))
        .await
        .expect("it is free");
    fall_back(&mut site, &one).await;
    assert!(next.trusted(), "the store came back in time");
    let repeated = one.acquire_at(0, &first).await;
    assert!(is_recovering(
        repeated.expect_err("another may trust the lock")
    ));
}

#[tokio::test]
async fn an_add_after_a_rollback_does_not_restore_a_released_lock() {
    let mut site = site().await;
    let [one, other] = ["one", "other"].map(|name| Client::new(name, &site.addrs(), 0));
    let mut job = one.acquire_at(0, &call("job")).await.expect("it is free");
    let both = one.acquire_under_at(0, &call("account"), &job.lease).await;
    let both = both.expect("it is free");
    save(&site).await;
    let left = one.release_lock_at(0, &both.lease, "account").await;
    left.expect("it is held");
    let next = other
        .acquire_at(0, &call("account"))
        .await
        .expect("it is free");
    fall_back(&mut site, &one).await;
    assert!(next.trusted(), "the store came back in time");
    let added = one.acquire_under_at(0, &call("account"), &job.lease).await;
    assert!(is_recovering(
        added.expect_err("another may trust the lock")
    ));
    one.renew(&mut job)
        .await
        .expect("what nobody gave back lives on");
}

#[tokio::test]
async fn a_waiter_lost_in_a_rollback_is_queued_again() {
    let mut site = site().await;
    let client = Client::new("worker", &site.addrs(), 0);
    let mut held = client
        .acquire_at(0, &call("a-lock"))
        .await
        .expect("it is free");
    let in_line = || AcquireCall::new("a-lock", TTL, WAIT);
    let first = client.open_at(0, &in_line());
    client.queued_at(0, "a-lock", 1).await;
    save(&site).await;
    let second = client.open_at(0, &in_line());
    client.queued_at(0, "a-lock", 2).await;
    fall_back(&mut site, &client).await;
    until("both wait again", async || {
        let lock = client.get_lock_at(0, "a-lock").await.ok()?;
        (lock.queue_length == 2).then_some(())
    })
    .await;
    // A new call may join once grants are allowed. Until then nobody in line is granted the lock, which is held.
    until("grants", async || {
        client.renew(&mut held).await.expect("it was saved");
        client.acquire_at(0, &call("another-probe")).await.ok()
    })
    .await;
    let third = client.open_at(0, &in_line());
    client.queued_at(0, "a-lock", 3).await;
    let mut before = held;
    for (index, waiter) in [first, second, third].into_iter().enumerate() {
        client.release_at(0, &before).await.expect("it is held");
        let next = waiter.await.expect("no panic").expect("its turn");
        // Who is granted the lock before its turn has a smaller token than those who were passed over.
        assert!(next.token() > before.token(), "{index} was not the next");
        before = next;
    }
}
