//! What becomes of locks when the store stops, loses its data or is full.

use std::time::Duration;

use tokio::time::sleep;

use super::{
    language::Cast,
    scene::{SOON, Scene, TICK, TTL, margin},
    wire::Ask,
};
use crate::clock::boottime;

const WAIT: Duration = Duration::from_secs(60);
/// A heartbeat that was sent just before is acknowledged by then.
const ON_THE_WAY: Duration = Duration::from_millis(100);

/// A store that stops for less than the validity costs no lock; calls wait for it.
pub async fn a_store_that_stops_for_a_while_costs_nothing(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    let lease = one.takes(&Ask::one("a").ttl(TTL * 5)).await;
    let redis = scene.deployment.redis.process();
    redis.pause().await;
    let mut call = one.asks(&Ask::one("b").wait(WAIT));
    sleep(TTL).await;
    assert!(call.is_open());
    redis.resume();
    let resumed = boottime();
    let next = call.lease().await.expect("it is free");
    assert!(next.at < resumed + SOON * 3, "{:?}", next.at - resumed);
    let state = one.state("a").await;
    assert!(state.valid && one.loss("a").is_none(), "{state:?}");
    let now = scene.held("a").await;
    assert_eq!(now.token, lease.token());
    scene.renewed("a", &now).await;
}

/// A store that stops for longer costs the lock, by the probe's own clock; calls that do not wait are
/// told that nothing can be had, and when to try again.
pub async fn a_store_that_stops_for_long_costs_the_lock(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    let lease = one.takes(&Ask::one("a").ttl(TTL)).await;
    let redis = scene.deployment.redis.process();
    redis.pause().await;
    let paused = boottime();
    let tried = one.begin("try_acquire", Ask::one("b").fields());
    let loss = one.lost("a").await;
    assert_eq!(loss.reason, "Expired");
    let trusted = loss.at - paused;
    assert!(
        trusted <= ON_THE_WAY + TTL - margin(TTL) + TICK,
        "{trusted:?}"
    );
    let (_, outcome) = tried.outcome().await;
    let failure = outcome.expect_err("no store");
    assert_eq!(failure.class, "Unavailable", "{failure:?}");
    redis.resume();
    let next = one.takes(&Ask::one("a").called("next").wait(WAIT)).await;
    assert!(next.token() > lease.token() && !one.state("a").await.valid);
    assert_eq!(scene.held("a").await.token, next.token());
}

/// A lock that the store has lost is told so; nothing new is granted until it is safe.
pub async fn a_store_that_lost_its_data_is_told_of(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    one.takes(&Ask::one("a").ttl(TTL * 3)).await;
    let begun = boottime();
    scene
        .deployment
        .redis
        .connect()
        .await
        .must(&["FLUSHALL"])
        .await;
    let loss = one.lost("a").await;
    assert_eq!(loss.reason, "StoreLost");
    assert!(loss.at < begun + TTL + SOON, "{:?}", loss.at - begun);
    assert!(!one.state("a").await.valid);
    let released = one.release("a").await.expect_err("it was lost");
    assert_eq!(
        (&*released.class, released.reason.as_deref()),
        ("LeaseLost", Some("StoreLost"))
    );
    let call = one.acquire(&Ask::one("b").wait(Duration::ZERO)).await;
    let failure = call.expect_err("not safe yet");
    assert_eq!(failure.class, "StoreRecovering", "{failure:?}");
    assert!(failure.retry_after_ms.is_some_and(|time| time > 0.0));
}

/// A store without memory refuses what is new, and says when to try again; what is held lives on.
pub async fn a_full_store_is_told_of_and_keeps_leases(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    one.takes(&Ask::one("a").ttl(TTL)).await;
    let mut redis = scene.deployment.redis.connect().await;
    redis.must(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let failure = one.acquire(&Ask::one("b")).await.expect_err("no memory");
    assert_eq!(failure.class, "StoreFull", "{failure:?}");
    assert!(failure.retry_after_ms.is_some_and(|time| time > 0.0));
    let now = scene.held("a").await;
    scene.renewed("a", &now).await;
    assert!(one.state("a").await.valid && one.loss("a").is_none());
    one.gives("a").await;
    assert_eq!(scene.look("a").await, None);
}
