//! Scenarios of a store that stops, loses its data or is full.

use std::time::Duration;

use tokio::time::sleep;

use super::{
    language::Cast,
    messages::ProbeAcquire,
    scenario::{DELAY_MAX, LOSS_DELAY_MAX, ScenarioFixture, TTL, safety_margin},
};
use crate::clock::boottime;

const WAIT: Duration = Duration::from_secs(60);
/// Time after which a heartbeat that was just sent is acknowledged.
const ACK_TIME: Duration = Duration::from_millis(100);

/// A store that stops for less than the TTL costs no lock, and calls wait for it.
pub async fn a_store_that_stops_for_a_while_costs_nothing(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let lease = one
        .expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(TTL * 5))
        .await;
    let redis = fixture.deployment.redis.process();
    redis.pause().await;
    let mut call = one.start_acquire(&ProbeAcquire::exclusive("b").with_wait(WAIT));
    sleep(TTL).await;
    assert!(call.is_pending());
    redis.resume();
    let resumed = boottime();
    let next = call.lease().await.expect("it is free");
    assert!(next.at < resumed + DELAY_MAX * 3, "{:?}", next.at - resumed);
    let state = one.state("a").await;
    assert!(state.valid && one.loss("a").is_none(), "{state:?}");
    let now = fixture.expect_holder("a").await;
    assert_eq!(now.token, lease.token());
    fixture.wait_until_renewed("a", &now).await;
}

/// A store that stops for longer than the TTL costs the lock, by the probe's own clock. Calls that
/// do not wait fail with a time after which to retry.
pub async fn a_store_that_stops_for_long_costs_the_lock(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let lease = one
        .expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(TTL))
        .await;
    let redis = fixture.deployment.redis.process();
    redis.pause().await;
    let paused = boottime();
    let tried = one.start_command("try_acquire", ProbeAcquire::exclusive("b").fields());
    let loss = one.wait_for_loss("a").await;
    assert_eq!(loss.reason, "Expired");
    let trusted = loss.at - paused;
    assert!(
        trusted <= ACK_TIME + TTL - safety_margin(TTL) + LOSS_DELAY_MAX,
        "{trusted:?}"
    );
    let (_, outcome) = tried.outcome().await;
    let failure = outcome.expect_err("no store");
    assert_eq!(failure.class, "Unavailable", "{failure:?}");
    redis.resume();
    let next = one
        .expect_acquired(
            &ProbeAcquire::exclusive("a")
                .with_lease_name("next")
                .with_wait(WAIT),
        )
        .await;
    assert!(next.token() > lease.token() && !one.state("a").await.valid);
    assert_eq!(fixture.expect_holder("a").await.token, next.token());
}

/// The loss of a lock in the store is reported, and nothing new is granted until a grant is safe.
pub async fn a_loss_of_data_in_the_store_is_reported(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    one.expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(TTL * 3))
        .await;
    let started_at = boottime();
    fixture
        .deployment
        .redis
        .connect()
        .await
        .must(&["FLUSHALL"])
        .await;
    let loss = one.wait_for_loss("a").await;
    assert_eq!(loss.reason, "StoreLost");
    assert!(
        loss.at < started_at + TTL + DELAY_MAX,
        "{:?}",
        loss.at - started_at
    );
    assert!(!one.state("a").await.valid);
    let released = one.release("a").await.expect_err("it was lost");
    assert_eq!(
        (&*released.class, released.reason.as_deref()),
        ("LeaseLost", Some("StoreLost"))
    );
    let call = one
        .acquire(&ProbeAcquire::exclusive("b").with_wait(Duration::ZERO))
        .await;
    let failure = call.expect_err("not safe yet");
    assert_eq!(failure.class, "StoreRecovering", "{failure:?}");
    assert!(failure.retry_after_ms.is_some_and(|time| time > 0.0));
}

/// A store without memory rejects new leases, with a time after which to retry. Existing leases are
/// renewed.
pub async fn a_full_store_rejects_new_leases_and_renews_others(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    one.expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(TTL))
        .await;
    let mut redis = fixture.deployment.redis.connect().await;
    redis.must(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let failure = one
        .acquire(&ProbeAcquire::exclusive("b"))
        .await
        .expect_err("no memory");
    assert_eq!(failure.class, "StoreFull", "{failure:?}");
    assert!(failure.retry_after_ms.is_some_and(|time| time > 0.0));
    let now = fixture.expect_holder("a").await;
    fixture.wait_until_renewed("a", &now).await;
    assert!(one.state("a").await.valid && one.loss("a").is_none());
    one.expect_released("a").await;
    assert_eq!(fixture.holder("a").await, None);
}
