//! A lock that is held: alone, kept by heartbeats, given back.

use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use serde_json::json;
use tokio::time::sleep;

use super::{
    language::Cast,
    scene::{SOON, Scene, TTL},
    wire::{Ask, CLOCK_STEP},
};
use crate::{clock::boottime, scale::figures, tap::Tap, time_left::expiry};

const WAIT: Duration = Duration::from_millis(500);
/// A validity of which more than half passes while nothing is held.
const AFTER_A_PAUSE: Duration = Duration::from_secs(8);
/// What one stream can hold.
const MANY: usize = 1_000;
/// The validity of each: a slow machine may keep a program from its heartbeats for seconds.
const LEASE: Duration = Duration::from_secs(20);
/// Of the runner, at a time.
const LOOKS: usize = 16;

/// The store has for the probe what the probe says; after a release the next has it at once, with a
/// larger token.
pub async fn a_lock_is_held_and_given_back(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    let lease = one.takes(&Ask::one("a")).await;
    let held = scene.held("a").await;
    assert_eq!(
        (&*held.lease_id, held.token),
        (&*lease.lease_id, lease.token())
    );
    assert!(lease.valid && lease.lost_reason.is_none());
    assert!(scene.is_held("a").await);
    one.gives("a").await;
    assert_eq!(scene.look("a").await, None, "the release was confirmed");
    let next = scene.takes("a").await;
    assert!(next.token() > lease.token());
    assert!(!one.state("a").await.valid);
    assert!(one.loss("a").is_none(), "a release is no loss");
}

/// After a pause in which it had nothing a client does not take its newest heartbeat for the newest that the
/// broker has heard: the call is newer, and its grant is worth all of its validity.
pub async fn a_client_that_was_idle_has_a_lock_at_once(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    let ask = Ask::one("a").ttl(AFTER_A_PAUSE);
    one.takes(&ask).await;
    sleep(AFTER_A_PAUSE / 8).await;
    one.gives("a").await;
    sleep(AFTER_A_PAUSE * 5 / 8).await;
    let begun = boottime();
    let lease = one.takes(&ask).await;
    let took = lease.at.saturating_sub(begun);
    // The next heartbeat would be a twelfth later.
    assert!(took < AFTER_A_PAUSE / 20, "{took:?}");
    assert!(one.state("a").await.valid);
    one.gives("a").await;
}

/// Who does not wait is told who holds the lock, and when to try again.
pub async fn a_try_on_a_held_lock_names_the_holder(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let (one, other) = (scene.one().await, scene.other().await);
    let reason = Ask::one("a").ttl(TTL * 5).with("reason", "nightly work");
    let held = other.takes(&reason).await;
    let tried = one.tries(&Ask::one("a")).await;
    assert!(tried.expect("an answer").is_none());
    let call = one.acquire(&Ask::one("a").wait(Duration::ZERO)).await;
    let failure = call.expect_err("it is held");
    assert_eq!(failure.class, "Held");
    let [holder] = &*failure.holders else {
        panic!("one holds it: {failure:?}")
    };
    assert_eq!(
        (&*holder.lease_id, holder.token),
        (&*held.lease_id, held.token())
    );
    assert_eq!(
        (&*holder.owner, &*holder.reason),
        ("probe-1", "nightly work")
    );
    assert!(failure.message.contains("probe-1"), "{failure:?}");
    let retry_after = failure.retry_after_ms.expect("when to try again");
    assert!(retry_after > 0.0 && retry_after <= expiry(TTL * 5).as_secs_f64() * 1e3);
}

/// A wait ends when its time is over, not before, with who was in the way; then the caller is in no line.
pub async fn a_wait_that_is_over_says_so_and_leaves_the_line(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    let held = scene.takes("a").await;
    let begun = boottime();
    let call = one.asks(&Ask::one("a").wait(WAIT));
    let (at, outcome) = call.outcome().await;
    let failure = outcome.expect_err("it is held");
    assert_eq!(failure.class, "WaitTimeout");
    assert_eq!(failure.holders[0].token, held.token());
    assert!(failure.retry_after_ms.is_some_and(|time| time > 0.0));
    let waited = at - begun;
    assert!(waited >= WAIT && waited < WAIT + SOON, "{waited:?}");
    scene.in_line("a", 0).await;
}

/// Without waiting for it, anybody can see who holds a lock.
pub async fn the_holder_of_a_lock_can_be_observed(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let (one, other) = (scene.one().await, scene.other().await);
    assert!(one.observe("a").await.is_none());
    let lease = other
        .takes(&Ask::one("a").with("reason", "to be seen"))
        .await;
    let seen = one.observe("a").await.expect("it is held");
    assert_eq!(
        (seen.lease_id, seen.token),
        (lease.lease_id.clone(), lease.token())
    );
    assert_eq!((&*seen.owner, &*seen.reason), ("probe-1", "to be seen"));
    assert!(seen.remaining_ms > 0.0);
    other.gives("a").await;
    assert!(one.observe("a").await.is_none());
}

/// A program whose own code stands still for three times the validity keeps its lock.
pub async fn a_blocked_main_thread_keeps_its_lock(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    let lease = one.takes(&Ask::one("a").ttl(TTL)).await;
    let rival = scene.rival("a").await;
    let begun = boottime();
    let time = TTL * 3;
    let blocked = one.begin_with("block", json!({"ms": time.as_secs() * 1_000}));
    // Asked at once, and answered when the thread is free again.
    let state = one.state("a").await;
    assert!(
        state.at + CLOCK_STEP >= begun + time,
        "nothing was blocked: {state:?}"
    );
    blocked.outcome().await.1.expect("it has ended");
    assert!(state.valid, "{state:?}");
    assert!(one.loss("a").is_none() && !rival.is_granted());
    let held = scene.held("a").await;
    assert_eq!(
        (held.lease_id, held.token),
        (lease.lease_id, lease.tokens[0])
    );
    one.gives("a").await;
    rival.granted().await;
}

/// A process keeps a thousand leases on one connection: each is renewed.
pub async fn a_thousand_leases_live_on_one_connection(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let tap = Tap::start(scene.deployment.addrs()[0]).await;
    let one = scene.one_at(&[tap.addr()]).await;
    let names: Vec<_> = (0..MANY).map(|lock| format!("lock-{lock}")).collect();
    let begun = boottime();
    let calls = names
        .iter()
        .map(|name| one.asks(&Ask::one(name).ttl(LEASE)));
    let calls: Vec<_> = calls.collect();
    let mut leases = Vec::new();
    for call in calls {
        leases.push(call.lease().await.expect("it is free"));
    }
    let took = boottime() - begun;
    // All at once would be a load of their own.
    let looks = stream::iter(&names).map(|name| scene.held(name));
    let looks: Vec<_> = looks.buffered(LOOKS).collect().await;
    let renewals = stream::iter(names.iter().zip(&looks));
    let renewals = renewals.map(|(name, seen)| scene.renewed(name, seen));
    renewals.buffered(LOOKS).collect::<()>().await;
    let kept = looks
        .iter()
        .zip(&leases)
        .filter(|(held, lease)| (&*held.lease_id, held.token) == (&*lease.lease_id, lease.token()));
    let lost = names.iter().filter(|name| one.loss(name).is_some()).count();
    let kept = kept.count();
    figures(&format!(
        "suite {:?}: leases={MANY} taken_in={}ms kept={kept} lost={lost} connections={}",
        cast.one,
        took.as_millis(),
        tap.connections()
    ));
    assert_eq!((kept, lost, tap.connections()), (MANY, 0, 1));
}
