//! A Redis that restarts with older data. Leases that ended since then are not restored, and
//! waiters stay queued.

use std::time::Duration;

use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    broker::{deployment::Deployment, process::BrokerOptions},
    client::unary::{AcquireCall, Client},
    clock::boottime,
    redis::server::RedisServer,
    status::error_reason,
    until::until,
};
use tonic::Status;

const TTL: Duration = Duration::from_secs(5);
const WAIT: Duration = Duration::from_secs(60);

/// Starts one broker whose leases have a TTL of at most 5 s.
async fn fixture() -> Deployment {
    let redis = RedisServer::start().await;
    let mut options = BrokerOptions::for_store(redis.url());
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

async fn save(fixture: &Deployment) {
    fixture.redis.connect().await.must(&["SAVE"]).await;
}

/// Restarts Redis with the saved data, and waits until the broker reports a recovering store.
async fn restore_saved_data(fixture: &mut Deployment, client: &Client) {
    fixture.redis.restart().await;
    until("a store that recovers", async || {
        let refused = client.acquire_at(0, &call("a-probe")).await;
        is_recovering(refused.expect_err("nothing is granted inside Q")).then_some(())
    })
    .await;
}

fn is_recovering(status: Status) -> bool {
    error_reason(&status) == Some(ErrorReason::StoreRecovering)
}

#[tokio::test]
async fn a_repeat_after_a_rollback_does_not_restore_a_released_lease() {
    let mut fixture = fixture().await;
    let [one, other] = ["one", "other"].map(|name| Client::new(name, &fixture.addrs(), 0));
    let first = call("a-lock");
    let held = one.acquire_at(0, &first).await.expect("it is free");
    save(&fixture).await;
    one.release_at(0, &held).await.expect("it is held");
    let next = other
        .acquire_at(0, &call("a-lock"))
        .await
        .expect("it is free");
    restore_saved_data(&mut fixture, &one).await;
    assert!(next.is_trusted(), "the store came back in time");
    let repeated = one.acquire_at(0, &first).await;
    assert!(is_recovering(
        repeated.expect_err("another may trust the lock")
    ));
}

#[tokio::test]
async fn an_add_after_a_rollback_does_not_restore_a_released_lock() {
    let mut fixture = fixture().await;
    let [one, other] = ["one", "other"].map(|name| Client::new(name, &fixture.addrs(), 0));
    let mut job = one.acquire_at(0, &call("job")).await.expect("it is free");
    let both = one.acquire_under_at(0, &call("account"), &job.lease).await;
    let both = both.expect("it is free");
    save(&fixture).await;
    let released = one.release_lock_at(0, &both.lease, "account").await;
    released.expect("it is held");
    let next = other
        .acquire_at(0, &call("account"))
        .await
        .expect("it is free");
    restore_saved_data(&mut fixture, &one).await;
    assert!(next.is_trusted(), "the store came back in time");
    let added = one.acquire_under_at(0, &call("account"), &job.lease).await;
    assert!(is_recovering(
        added.expect_err("another may trust the lock")
    ));
    one.renew(&mut job)
        .await
        .expect("what no caller released lives on");
}

/// The holder relies on the lost entry until a renewal reports its end, or its validity has passed.
#[tokio::test]
async fn the_release_of_an_entry_after_a_rollback_keeps_the_lock_closed() {
    let mut fixture = fixture().await;
    let [one, other] = ["one", "other"].map(|name| Client::new(name, &fixture.addrs(), 0));
    let outer = call("a-lock");
    let mut held = one.acquire_at(0, &outer).await.expect("it is free");
    save(&fixture).await;
    let inner = one.acquire_under_at(0, &call("a-lock"), &held.lease).await;
    inner.expect("a re-entry");
    restore_saved_data(&mut fixture, &one).await;
    until("grants", async || {
        one.renew(&mut held).await.expect("it was saved");
        one.acquire_at(0, &call("another-probe")).await.ok()
    })
    .await;
    one.renew(&mut held).await.expect("it was saved");
    let released = one.release_entry_at(0, &held.lease, &outer).await;
    assert_eq!(released.expect("it is held").hold_count, 0);
    let next = other.acquire(&AcquireCall::new("a-lock", TTL, WAIT)).await;
    next.expect("its turn");
    assert!(
        boottime() > held.valid_until(),
        "granted while the holder relies on its lost entry"
    );
}

#[tokio::test]
async fn a_waiter_lost_in_a_rollback_is_queued_again() {
    let mut fixture = fixture().await;
    let client = Client::new("worker", &fixture.addrs(), 0);
    let mut held = client
        .acquire_at(0, &call("a-lock"))
        .await
        .expect("it is free");
    let waiting_call = || AcquireCall::new("a-lock", TTL, WAIT);
    let first = client.start_acquire_at(0, &waiting_call());
    client.wait_for_queue_length_at(0, "a-lock", 1).await;
    save(&fixture).await;
    let second = client.start_acquire_at(0, &waiting_call());
    client.wait_for_queue_length_at(0, "a-lock", 2).await;
    restore_saved_data(&mut fixture, &client).await;
    until("both wait again", async || {
        let lock = client.get_lock_at(0, "a-lock").await.ok()?;
        (lock.queue_length == 2).then_some(())
    })
    .await;
    // A new call can be queued once grants are allowed. Until then no waiter is granted the lock,
    // because the lock is held.
    until("grants", async || {
        client.renew(&mut held).await.expect("it was saved");
        client.acquire_at(0, &call("another-probe")).await.ok()
    })
    .await;
    let third = client.start_acquire_at(0, &waiting_call());
    client.wait_for_queue_length_at(0, "a-lock", 3).await;
    let mut before = held;
    for (index, waiter) in [first, second, third].into_iter().enumerate() {
        client.release_at(0, &before).await.expect("it is held");
        let next = waiter.await.expect("no panic").expect("its turn");
        // A waiter that was granted the lock out of order has a smaller token than the waiters that
        // it overtook.
        assert!(next.token() > before.token(), "{index} was not the next");
        before = next;
    }
}
