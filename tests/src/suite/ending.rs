//! A holder that goes away, or stands still: its lock goes on at the end of its time, and it knows.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use super::{
    language::Cast,
    probe::Probe,
    scene::{SOON, Scene, TICK, TTL, margin},
    wire::{Ask, CLOCK_STEP},
};
use crate::{
    ahead::Ahead,
    clock::boottime,
    operator::{force, request},
    proxy::{Mode, Proxy, Way},
    scale::figures,
    time_left::expiry,
};

const WAIT: Duration = Duration::from_secs(60);
/// Long enough that nothing in these scenarios can be the end of it.
const LONG: Duration = Duration::from_secs(20);
const SLEPT: Duration = Duration::from_secs(300);
/// How soon the lock is free when the work of its holder has stopped.
const FREED_WITHIN: Duration = Duration::from_millis(500);
/// How long the end of a program in good order may take.
const ORDERLY: Duration = Duration::from_secs(2);

/// A killed holder is replaced by the next in line when its time in the store is over.
pub async fn a_killed_holder_is_replaced_at_the_end_of_its_time(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let (mut other, one) = (scene.other().await, scene.one().await);
    let dead = other.takes(&Ask::one("a").ttl(TTL)).await;
    let call = one.asks(&Ask::one("a").ttl(TTL).wait(WAIT));
    one.queued(&call, 1).await;
    other.kill().await;
    let (lease, ends) = scene.watched("a", call.lease()).await;
    let lease = lease.expect("its turn");
    let end = ends.iter().rfind(|seen| seen.lease_id == dead.lease_id);
    let end = end.expect("it was looked at");
    assert!(
        lease.at + CLOCK_STEP >= end.earliest,
        "too soon: {lease:?} {end:?}"
    );
    assert!(lease.at <= end.latest + SOON, "late: {lease:?} {end:?}");
    assert!(lease.token() > dead.token());
}

/// The same when it is this language's program that dies.
pub async fn a_lock_of_a_killed_program_goes_on(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let mut one = scene.one().await;
    one.takes(&Ask::one("a").ttl(TTL)).await;
    let rival = scene.rival("a").await;
    one.kill().await;
    scene.hand_over(rival).await.at_the_end();
}

/// A program that leaves without a word keeps its lock to the end of its time.
pub async fn an_exit_without_release_keeps_the_lock_to_its_end(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let mut one = scene.one().await;
    one.takes(&Ask::one("a").ttl(TTL)).await;
    let rival = scene.rival("a").await;
    one.exit().await;
    scene.hand_over(rival).await.at_the_end();
}

/// A program that ends in good order gives everything back at once.
pub async fn a_program_that_ends_gives_its_locks_back(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let mut one = scene.one().await;
    one.takes(&Ask::one("a").ttl(LONG)).await;
    let rival = scene.rival("a").await;
    let begun = boottime();
    one.end().await;
    let (_, granted) = rival.granted().await;
    let took = granted - begun;
    assert!(took < ORDERLY + SOON, "{took:?}");
}

/// A shutdown gives everything back, ends waits, and leaves no lock that is trusted.
pub async fn a_shutdown_gives_everything_back(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    let held = scene.takes("c").await;
    for name in ["a", "b"] {
        one.takes(&Ask::one(name).ttl(LONG)).await;
    }
    let rivals = [scene.rival("a").await, scene.rival("b").await];
    let call = one.asks(&Ask::one("c").wait(WAIT));
    one.queued(&call, 1).await;
    let begun = boottime();
    one.told("shutdown", json!({})).await;
    for rival in rivals {
        let took = rival.granted().await.1 - begun;
        assert!(took < SOON, "{took:?}");
    }
    let (_, outcome) = call.outcome().await;
    assert_eq!(outcome.expect_err("no lock").class, "Closed");
    scene.in_line("c", 0).await;
    assert_eq!(one.lost("a").await.reason, "Closed");
    assert!(!one.state("b").await.valid);
    let call = one.acquire(&Ask::one("d")).await;
    assert_eq!(call.expect_err("it is shut down").class, "Closed");
    scene.gives(&held).await;
}

/// With a grace of 0 a lock is free as soon as the stream of its holder breaks.
pub async fn a_disconnect_grace_frees_sooner(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let mut one = scene.one().await;
    let ask = Ask::one("a")
        .ttl(LONG)
        .time("disconnect_grace_ms", Duration::ZERO);
    one.takes(&ask).await;
    let rival = scene.rival("a").await;
    let held = scene.held("a").await;
    let begun = boottime();
    one.kill().await;
    let (_, granted) = rival.granted().await;
    assert!(granted < begun + SOON, "late: {:?}", granted - begun);
    assert!(granted + LONG / 2 < held.earliest, "in its time");
}

/// After an expiry the lock stays closed for the delay that its holder asked for.
pub async fn a_lock_delay_keeps_a_lock_closed(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let mut one = scene.one().await;
    let delay = Duration::from_millis(1_500);
    one.takes(&Ask::one("a").ttl(TTL).time("lock_delay_ms", delay))
        .await;
    let rival = scene.rival("a").await;
    one.kill().await;
    let over = scene.hand_over(rival).await;
    assert!(
        over.granted >= over.end.earliest + delay,
        "too soon: {over:?}"
    );
    assert!(
        over.granted <= over.end.latest + delay + SOON,
        "late: {over:?}"
    );
}

/// A lock is lost when its longest time is over, and its holder knows before anybody has it.
pub async fn a_lock_is_held_no_longer_than_max_hold(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    let most = TTL * 2;
    let lease = one
        .takes(&Ask::one("a").ttl(TTL).time("max_hold_ms", most))
        .await;
    let rival = scene.rival("a").await;
    let over = scene.hand_over(rival).await;
    let loss = one.loss("a").expect("told before");
    assert!(["MaxHold", "Expired"].contains(&&*loss.reason), "{loss:?}");
    let held = loss.at - lease.at;
    assert!(held > TTL && held <= most + TICK, "{held:?}");
    assert!(loss.at < over.granted, "{loss:?} {over:?}");
    over.at_the_end();
}

/// An operator takes a lock away. It is free as soon as its holder has stopped, who is told of the loss all the same.
pub async fn a_revoked_lock_is_released_when_its_holder_stops(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    let lease = one.takes(&Ask::one("a").ttl(LONG)).await;
    let rival = scene.rival("a").await;
    let admin = scene.deployment.brokers[0].admin();
    let taken = force(admin, request("a", &lease.lease_id)).await;
    taken.expect("an operator may");
    assert_eq!(one.lost("a").await.reason, "Revoked");
    assert!(!rival.is_granted(), "its holder has not stopped yet");
    let stopped = boottime();
    let released = one.release("a").await.expect_err("it was lost");
    assert_eq!(
        (&*released.class, released.reason.as_deref()),
        ("LeaseLost", Some("Revoked"))
    );
    let took = rival.granted().await.1 - stopped;
    figures(&format!(
        "suite {:?}: taken away free_after={}ms",
        cast.one,
        took.as_millis()
    ));
    assert!(took < FREED_WITHIN, "{took:?}");
}

/// A process that was stopped for longer than its validity knows of the loss before anything else.
pub async fn a_stopped_process_knows_before_it_is_asked(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let proxy = Proxy::start(scene.deployment.addrs()[0]).await;
    let one = scene.one_at(&[proxy.addr()]).await;
    one.takes(&Ask::one("a").ttl(TTL)).await;
    let rival = scene.rival("a").await;
    one.process().pause().await;
    // The broker's word does not wait in its sockets.
    proxy.set_mode(Mode::Swallow(Way::ToClient));
    let over = scene.hand_over(rival).await;
    over.at_the_end();
    assert_eq!(one.process().state(), 'T', "it is stopped all the time");
    // It lies in its input when it goes on.
    let state = one.looks("a");
    let resumed = boottime();
    one.process().resume();
    let state = state.lease().await.expect("a look");
    let was_silent = state.at + CLOCK_STEP > resumed;
    assert!(was_silent, "it has said something while it was stopped");
    assert!(!state.valid && state.remaining_ms == 0.0, "{state:?}");
    assert_eq!(state.lost_reason.as_deref(), Some("Expired"));
    let told = one.lost("a").await.at.saturating_sub(resumed);
    assert!(told < SOON, "told after {told:?}");
    let released = one.release("a").await.expect_err("it was lost");
    assert_eq!(
        (&*released.class, released.reason.as_deref()),
        ("LeaseLost", Some("Expired"))
    );
    assert_eq!(scene.held("a").await.token, over.held.token());
}

/// Once lost a lock stays lost, though the store would renew its lease; it runs out, and a release says
/// that it was lost.
pub async fn a_loss_is_final(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    let lease = one.takes(&Ask::one("a").ttl(TTL)).await;
    let rival = scene.rival("a").await;
    one.process().pause().await;
    // Past the trust, but not past what the store holds.
    sleep(TTL - margin(TTL) + Duration::from_millis(50)).await;
    let held = scene.held("a").await;
    assert_eq!(held.lease_id, lease.lease_id, "not over in the store");
    let state = one.looks("a");
    let resumed = boottime();
    one.process().resume();
    assert!(!state.lease().await.expect("a look").valid);
    let (next, granted) = rival.granted().await;
    let kept = granted - resumed;
    assert!(kept <= expiry(TTL) + SOON, "kept for {kept:?}");
    let state = one.state("a").await;
    assert!(!state.valid, "taken again silently: {state:?}");
    assert_eq!(state.lost_reason.as_deref(), Some("Expired"));
    let released = one.release("a").await.expect_err("it was lost");
    assert_eq!(released.class, "LeaseLost");
    assert_eq!(scene.held("a").await.token, next.token());
}

/// A machine that was suspended for longer than the validity: lost as soon as it wakes.
pub async fn a_suspend_ends_trust_at_once(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let ahead = Ahead::build().await;
    let mut command = cast.one.command();
    ahead.apply(&mut command);
    let endpoint = format!("http://{}", scene.deployment.addrs()[0]);
    let one = Probe::start_with(command, &[("LEASEHOLD_ENDPOINTS", &endpoint)]).await;
    let one = one.expect("a broker that runs");
    let lease = one.takes(&Ask::one("a").ttl(LONG)).await;
    let rival = scene.rival("a").await;
    assert!(one.state("a").await.valid);
    let slept = boottime();
    ahead.set(SLEPT);
    let loss = one.lost("a").await;
    let told = boottime() - slept;
    figures(&format!(
        "suite {:?}: suspend told_after={}ms",
        cast.one,
        told.as_millis()
    ));
    assert!(told <= SOON, "told after {told:?}");
    assert!(
        loss.at.abs_diff(slept + SLEPT) < SOON * 2,
        "another clock: {loss:?}"
    );
    assert!(!one.state("a").await.valid);
    assert_eq!(scene.held("a").await.lease_id, lease.lease_id);
    assert!(!rival.is_granted());
}
