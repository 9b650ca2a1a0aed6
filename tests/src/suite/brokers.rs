//! Scenarios of brokers that are killed, restarted or drained.

use std::time::Duration;

use super::{
    language::Cast,
    messages::ProbeAcquire,
    scenario::{DELAY_MAX, LOSS_DELAY_MAX, ScenarioFixture, TTL, safety_margin},
};
use crate::clock::boottime;

const WAIT: Duration = Duration::from_secs(60);

/// A lock and a queue position outlive their broker: same lease, same token, and no waiter is
/// passed over.
pub async fn a_killed_broker_loses_no_lock_and_no_queue_position(cast: Cast) {
    let mut fixture = ScenarioFixture::start(cast, 2).await;
    let one = fixture.start_tested_probe().await;
    let lease = one
        .expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(TTL))
        .await;
    let held = fixture.expect_acquired("b").await;
    let mut call = one.start_acquire(&ProbeAcquire::exclusive("b").with_ttl(TTL).with_wait(WAIT));
    one.wait_for_position(&call, 1).await;
    let behind = fixture.enqueue_rival("b").await;
    let before = fixture.expect_holder("a").await;
    fixture.deployment.brokers[0].kill().await;
    fixture.wait_until_renewed("a", &before).await;
    let state = one.state("a").await;
    assert!(state.valid && one.loss("a").is_none(), "{state:?}");
    assert_eq!(
        (state.lease_id, state.tokens),
        (lease.lease_id, lease.tokens)
    );
    assert!(call.is_pending());
    fixture.expect_released(&held).await;
    let next = call.lease().await.expect("its turn");
    assert!(next.token() > held.token() && !behind.is_granted());
    one.expect_released("b").await;
    behind.wait_for_grant().await;
    one.expect_released("a").await;
}

/// A broker that is killed and restarted has all leases again, with their tokens.
pub async fn a_broker_that_comes_back_finds_its_leases(cast: Cast) {
    let mut fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let lease = one
        .expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(TTL * 4))
        .await;
    let held = fixture.expect_acquired("b").await;
    let call = one.start_acquire(
        &ProbeAcquire::exclusive("b")
            .with_ttl(TTL * 4)
            .with_wait(WAIT),
    );
    one.wait_for_position(&call, 1).await;
    let before = fixture.expect_holder("a").await;
    fixture.deployment.brokers[0].restart().await;
    fixture.wait_until_renewed("a", &before).await;
    let state = one.state("a").await;
    assert!(state.valid && one.loss("a").is_none(), "{state:?}");
    assert_eq!(
        (state.lease_id, state.tokens),
        (lease.lease_id, lease.tokens)
    );
    fixture.expect_released(&held).await;
    assert!(call.lease().await.expect("its turn").token() > held.token());
}

/// Clients leave a drained broker, which then ends at once without losing leases or waits.
pub async fn a_drained_broker_is_left_in_time(cast: Cast) {
    let mut fixture = ScenarioFixture::start(cast, 2).await;
    let one = fixture.start_tested_probe().await;
    let lease = one
        .expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(TTL))
        .await;
    let held = fixture.expect_acquired("b").await;
    let mut call = one.start_acquire(&ProbeAcquire::exclusive("b").with_ttl(TTL).with_wait(WAIT));
    one.wait_for_position(&call, 1).await;
    let behind = fixture.enqueue_rival("b").await;
    let before = fixture.expect_holder("a").await;
    fixture.deployment.brokers[0].terminate();
    assert_eq!(fixture.deployment.brokers[0].wait_for_exit().await, Some(0));
    fixture.wait_until_renewed("a", &before).await;
    let state = one.state("a").await;
    assert!(state.valid && one.loss("a").is_none(), "{state:?}");
    assert_eq!(
        (state.lease_id, state.tokens),
        (lease.lease_id, lease.tokens)
    );
    assert!(call.is_pending());
    fixture.expect_released(&held).await;
    call.lease().await.expect("its turn");
    assert!(!behind.is_granted());
    one.expect_released("b").await;
    behind.wait_for_grant().await;
}

/// Without any broker, the probe's own clock ends the lock, and the lock is not acquired again
/// silently.
pub async fn without_a_broker_a_lock_is_lost_in_time(cast: Cast) {
    let mut fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let lease = one
        .expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(TTL))
        .await;
    let before = fixture.expect_holder("a").await;
    fixture.wait_until_renewed("a", &before).await;
    let killed = boottime();
    fixture.deployment.brokers[0].kill().await;
    assert!(one.state("a").await.valid, "its time is not over");
    let loss = one.wait_for_loss("a").await;
    assert_eq!(loss.reason, "Expired");
    let trusted = loss.at - killed;
    assert!(
        trusted <= TTL - safety_margin(TTL) + LOSS_DELAY_MAX,
        "{trusted:?}"
    );
    fixture.deployment.brokers[0].restart().await;
    let next = one
        .expect_acquired(
            &ProbeAcquire::exclusive("a")
                .with_lease_name("next")
                .with_ttl(TTL)
                .with_wait(WAIT),
        )
        .await;
    assert!(next.token() > lease.token());
    let now = fixture.expect_holder("a").await;
    assert_eq!(now.lease_id, next.lease_id);
    assert!(!one.state("a").await.valid, "two leases are trusted");
    let released = one.release("a").await.expect_err("it was lost");
    assert_eq!(released.class, "LeaseLost");
    fixture.wait_until_renewed("a", &now).await;
    assert!(next.at > killed + DELAY_MAX);
}
