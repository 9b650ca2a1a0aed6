//! Networks that swallow, hold up and cut what is said between a probe and its broker.

use std::time::Duration;

use futures::future::join_all;
use rand::Rng;
use serde_json::json;
use tokio::time::sleep;

use super::{
    language::Cast,
    scene::{SOON, Scene, TICK, TTL, margin},
    wire::{Ask, CLOCK_STEP},
};
use crate::{
    clock::boottime,
    proxy::{DATA, Mode, Proxy, Way},
    scale::figures,
    until::until,
};

const WAYS: [Way; 3] = [Way::Both, Way::ToBroker, Way::ToClient];
/// What was under way when the network failed has arrived by then.
const ON_THE_WAY: Duration = Duration::from_millis(300);
/// Acknowledgements that come later than the store's expiry is longer than the trust; but not so late
/// that the trust from the one before is over, or that a probe would give the connection up, as gRPC
/// does when a ping has no answer for 2 s.
const DELAY: Duration = Duration::from_millis(1_800);
/// A heartbeat that was due has been sent by then.
const JUST_AFTER: Duration = Duration::from_millis(100);
const LONG_TTL: Duration = Duration::from_millis(4_200);

/// Cut off in any direction, a holder reports its loss before anybody else has the lock, and stays lost
/// when the network is back.
pub async fn a_partition_is_noticed_before_the_next_grant(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    join_all(WAYS.map(|way| part(&scene, way))).await;
}

async fn part(scene: &Scene, way: Way) {
    let lock = format!("{way:?}");
    let proxy = Proxy::start(scene.deployment.addrs()[0]).await;
    let one = scene.one_at(&[proxy.addr()]).await;
    one.takes(&Ask::one(&lock).ttl(TTL)).await;
    let rival = scene.rival(&lock).await;
    sleep(TTL.mul_f64(rand::thread_rng().gen_range(0.0..0.5))).await;
    assert!(one.state(&lock).await.valid);
    proxy.set_mode(Mode::Swallow(way));
    let swallowed = boottime();
    let over = scene.hand_over(rival).await;
    let loss = one.loss(&lock).expect("told before the next has it");
    assert_eq!(loss.reason, "Expired");
    assert!(loss.at < over.end.earliest, "too late: {loss:?} {over:?}");
    let trusted = loss.at.saturating_sub(swallowed);
    let limit = ON_THE_WAY + TTL - margin(TTL) + TICK;
    assert!(trusted <= limit, "trusted for {trusted:?}");
    over.at_the_end();
    assert!(proxy.lost() > 0, "nothing was swallowed");
    figures(&format!(
        "suite {:?}: partition {way:?} trusted_on={}ms before_the_next_grant={}ms",
        scene.cast.one,
        trusted.as_millis(),
        (over.granted - loss.at).as_millis()
    ));

    proxy.set_mode(Mode::Forward);
    proxy.cut().await;
    one.takes(&Ask::one(&format!("{lock}-another"))).await;
    assert!(!one.state(&lock).await.valid, "taken again silently");
    let released = one.release(&lock).await.expect_err("it was lost");
    assert_eq!(released.class, "LeaseLost");
    assert_eq!(scene.held(&lock).await.token, over.held.token());
}

/// However late a heartbeat is acknowledged, validity counts from its sending.
pub async fn validity_counts_from_the_sending(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let proxy = Proxy::start(scene.deployment.addrs()[0]).await;
    let one = scene.one_at(&[proxy.addr()]).await;
    one.takes(&Ask::one("a").ttl(LONG_TTL)).await;
    let rival = scene.rival("a").await;
    let messages = proxy.from_broker(DATA);
    proxy.set_mode(Mode::Delay(DELAY));
    // The next acknowledgement is the last that comes.
    let told = until("an acknowledgement", async || {
        (proxy.from_broker(DATA) > messages).then(boottime)
    });
    let told = told.await;
    proxy.set_mode(Mode::Swallow(Way::Both));
    let over = scene.hand_over(rival).await;
    let loss = one.loss("a").expect("told before the next has it");
    figures(&format!(
        "suite {:?}: acknowledged {}ms late, trusted_on={}ms before_the_next_grant={}ms",
        cast.one,
        DELAY.as_millis(),
        loss.at.saturating_sub(told).as_millis(),
        over.granted.saturating_sub(loss.at).as_millis()
    ));
    assert!(loss.at < over.end.earliest, "too late: {loss:?} {over:?}");
    let end = told + LONG_TTL - margin(LONG_TTL);
    assert!(loss.at <= end + TICK, "{loss:?}");
    assert!(loss.at + SOON > end, "the late one did not count: {loss:?}");
    // Counted from the receipt it would be trusted too long.
    assert!(told + DELAY + LONG_TTL - margin(LONG_TTL) > over.end.latest);
    over.at_the_end();
}

/// However late a grant comes to a waiter, its validity counts from a heartbeat before it.
pub async fn a_late_grant_is_valid_for_less(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let proxy = Proxy::start(scene.deployment.addrs()[0]).await;
    let one = scene.one_at(&[proxy.addr()]).await;
    let held = scene.takes("a").await;
    let ttl = TTL * 5;
    let call = one.asks(&Ask::one("a").ttl(ttl));
    one.queued(&call, 1).await;
    proxy.set_mode(Mode::Delay(DELAY));
    let begun = boottime();
    scene.gives(&held).await;
    let given = boottime();
    let lease = call.lease().await.expect("its turn");
    assert!(
        lease.at + CLOCK_STEP >= begun + DELAY,
        "it was not late: {lease:?}"
    );
    let until = lease.at + Duration::from_secs_f64(lease.remaining_ms / 1e3);
    let most = given + ttl - margin(ttl);
    assert!(until <= most + TICK, "{:?} too long", until - most);
    assert!(lease.valid && until > lease.at + ttl / 4, "{lease:?}");
}

/// A grant that comes to its caller just after a heartbeat, when half of its validity is over, is renewed before
/// the other half is.
pub async fn a_late_grant_is_renewed_in_time(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let broker = &scene.deployment.brokers[0];
    let proxy = Proxy::start(broker.addr()).await;
    let one = scene.one_at(&[proxy.addr()]).await;
    one.takes(&Ask::one("kept").ttl(TTL * 4)).await;
    let messages = proxy.from_broker(DATA);
    until("an acknowledgement", async || {
        (proxy.from_broker(DATA) > messages).then_some(())
    })
    .await;
    let interval = TTL / 3;
    // The heartbeats that the call needs come an interval and two after the one of the acknowledgement.
    sleep(interval * 7 / 10).await;
    broker.process().pause().await;
    let call = one.asks(&Ask::one("late").ttl(TTL));
    sleep(interval * 13 / 10 + JUST_AFTER).await;
    broker.process().resume();
    let lease = call.lease().await.expect("it is free");
    sleep(TTL).await;
    let state = one.state("late").await;
    assert!(
        state.valid && one.loss("late").is_none(),
        "{lease:?} {state:?}"
    );
    let held = scene.held("late").await;
    assert_eq!(held.token, lease.token());
    scene.renewed("late", &held).await;
}

/// A grant that got lost is found by the repeat of its call: one lease, one token.
pub async fn a_lost_grant_is_asked_for_again(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let proxy = Proxy::start(scene.deployment.addrs()[0]).await;
    let one = scene.one_at(&[proxy.addr()]).await;
    proxy.set_mode(Mode::Swallow(Way::ToClient));
    let mut call = one.asks(&Ask::one("a").ttl(TTL * 5));
    let granted = until("granted", async || scene.look("a").await).await;
    assert!(call.is_open(), "the probe cannot know");
    proxy.set_mode(Mode::Forward);
    proxy.cut().await;
    let lease = call.lease().await.expect("it was free");
    assert_eq!(
        (lease.lease_id.clone(), lease.token()),
        (granted.lease_id, granted.token)
    );
    let state = scene.state("a").await.expect("it is held");
    assert_eq!(
        (state.last_fencing_token, state.queue_length),
        (lease.token(), 0)
    );
    one.gives("a").await;
    assert_eq!(scene.look("a").await, None);
}

/// A release whose answer got lost is repeated: it has gone well, and the next holder keeps the lock.
pub async fn a_lost_release_is_repeated_and_harms_nobody(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let proxy = Proxy::start(scene.deployment.addrs()[0]).await;
    let one = scene.one_at(&[proxy.addr()]).await;
    one.takes(&Ask::one("a").ttl(TTL * 5)).await;
    proxy.set_mode(Mode::Swallow(Way::ToClient));
    let begun = boottime();
    let mut call = one.begin_with("release", json!({"lease": "a"}));
    scene.free("a").await;
    assert!(call.is_open(), "the probe cannot know");
    let next = scene.takes("a").await;
    proxy.set_mode(Mode::Forward);
    proxy.cut().await;
    let (at, released) = call.outcome().await;
    released.expect("it was given back");
    assert!(at < begun + SOON * 2, "{:?}", at - begun);
    assert_eq!(scene.held("a").await.token, next.token());
    scene.gives(&next).await;
}
