//! Brokers that die, come back or are stopped in good order.

use std::time::Duration;

use super::{
    language::Cast,
    scene::{SOON, Scene, TICK, TTL, margin},
    wire::Ask,
};
use crate::clock::boottime;

const WAIT: Duration = Duration::from_secs(60);

/// A lock and a place in line outlive their broker: same lease, same token, nobody passes.
pub async fn a_killed_broker_costs_neither_locks_nor_places(cast: Cast) {
    let mut scene = Scene::start(cast, 2).await;
    let one = scene.one().await;
    let lease = one.takes(&Ask::one("a").ttl(TTL)).await;
    let held = scene.takes("b").await;
    let mut call = one.asks(&Ask::one("b").ttl(TTL).wait(WAIT));
    one.queued(&call, 1).await;
    let behind = scene.rival("b").await;
    let before = scene.held("a").await;
    scene.deployment.brokers[0].kill().await;
    scene.renewed("a", &before).await;
    let state = one.state("a").await;
    assert!(state.valid && one.loss("a").is_none(), "{state:?}");
    assert_eq!(
        (state.lease_id, state.tokens),
        (lease.lease_id, lease.tokens)
    );
    assert!(call.is_open());
    scene.gives(&held).await;
    let next = call.lease().await.expect("its turn");
    assert!(next.token() > held.token() && !behind.is_granted());
    one.gives("b").await;
    behind.granted().await;
    one.gives("a").await;
}

/// A broker that is killed and started again has the leases back, with their tokens.
pub async fn a_broker_that_comes_back_finds_its_leases(cast: Cast) {
    let mut scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    let lease = one.takes(&Ask::one("a").ttl(TTL * 4)).await;
    let held = scene.takes("b").await;
    let call = one.asks(&Ask::one("b").ttl(TTL * 4).wait(WAIT));
    one.queued(&call, 1).await;
    let before = scene.held("a").await;
    scene.deployment.brokers[0].restart().await;
    scene.renewed("a", &before).await;
    let state = one.state("a").await;
    assert!(state.valid && one.loss("a").is_none(), "{state:?}");
    assert_eq!(
        (state.lease_id, state.tokens),
        (lease.lease_id, lease.tokens)
    );
    scene.gives(&held).await;
    assert!(call.lease().await.expect("its turn").token() > held.token());
}

/// A broker that is stopped in good order is left before it ends: it ends at once, and nothing is lost.
pub async fn a_drained_broker_is_left_in_time(cast: Cast) {
    let mut scene = Scene::start(cast, 2).await;
    let one = scene.one().await;
    let lease = one.takes(&Ask::one("a").ttl(TTL)).await;
    let held = scene.takes("b").await;
    let mut call = one.asks(&Ask::one("b").ttl(TTL).wait(WAIT));
    one.queued(&call, 1).await;
    let behind = scene.rival("b").await;
    let before = scene.held("a").await;
    scene.deployment.brokers[0].terminate();
    assert_eq!(scene.deployment.brokers[0].ended().await, Some(0));
    scene.renewed("a", &before).await;
    let state = one.state("a").await;
    assert!(state.valid && one.loss("a").is_none(), "{state:?}");
    assert_eq!(
        (state.lease_id, state.tokens),
        (lease.lease_id, lease.tokens)
    );
    assert!(call.is_open());
    scene.gives(&held).await;
    call.lease().await.expect("its turn");
    assert!(!behind.is_granted());
    one.gives("b").await;
    behind.granted().await;
}

/// Where no broker is left, the probe's own clock ends the lock; nothing is taken again silently.
pub async fn without_a_broker_a_lock_is_lost_in_time(cast: Cast) {
    let mut scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    let lease = one.takes(&Ask::one("a").ttl(TTL)).await;
    let before = scene.held("a").await;
    scene.renewed("a", &before).await;
    let killed = boottime();
    scene.deployment.brokers[0].kill().await;
    assert!(one.state("a").await.valid, "its time is not over");
    let loss = one.lost("a").await;
    assert_eq!(loss.reason, "Expired");
    let trusted = loss.at - killed;
    assert!(trusted <= TTL - margin(TTL) + TICK, "{trusted:?}");
    scene.deployment.brokers[0].restart().await;
    let next = one
        .takes(&Ask::one("a").called("next").ttl(TTL).wait(WAIT))
        .await;
    assert!(next.token() > lease.token());
    let now = scene.held("a").await;
    assert_eq!(now.lease_id, next.lease_id);
    assert!(!one.state("a").await.valid, "two leases are trusted");
    let released = one.release("a").await.expect_err("it was lost");
    assert_eq!(released.class, "LeaseLost");
    scene.renewed("a", &now).await;
    assert!(next.at > killed + SOON);
}
