//! The line before a lock: its order, its places, and who leaves it.

use std::time::Duration;

use rand::Rng;
use tokio::time::sleep;

use super::{
    language::Cast,
    probe::{Call, Probe},
    scene::{SOON, Scene, TTL},
    wire::Ask,
};
use crate::{
    clock::boottime,
    proxy::{Mode, Proxy},
    scale::{count, figures},
};

const WAIT: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(20);
/// How late the broker's word is where it is held up.
const LATE: Duration = Duration::from_millis(700);

/// First come, first served, across programs and languages.
pub async fn a_line_keeps_its_order_across_programs(cast: Cast) {
    let scene = Scene::start(cast, 2).await;
    let (one, other) = (scene.one().await, scene.other().await);
    let held = scene.takes("a").await;
    let ask = |name: &str| Ask::one("a").called(name).ttl(TTL * 5).wait(WAIT);
    let mut calls = Vec::new();
    for (place, probe) in [(1, &one), (2, &other)] {
        let call = probe.asks(&ask("first"));
        probe.queued(&call, place).await;
        calls.push((probe, "first", call));
    }
    let rival = scene.rival("a").await;
    for (place, probe) in [(4, &other), (5, &one)] {
        let call = probe.asks(&ask("second"));
        probe.queued(&call, place).await;
        calls.push((probe, "second", call));
    }
    let behind = calls.split_off(2);
    scene.gives(&held).await;
    let mut last = held.token();
    for (probe, name, call) in calls {
        last = turn(&scene, last, (probe, name, call)).await;
    }
    let (held, _) = rival.granted().await;
    assert!(held.token() > last);
    scene.gives(&held).await;
    last = held.token();
    for (probe, name, call) in behind {
        last = turn(&scene, last, (probe, name, call)).await;
    }
    assert_eq!(scene.look("a").await, None);
}

/// One turn: nobody else has the lock; its token.
async fn turn(scene: &Scene, last: i64, (probe, name, call): (&Probe, &str, Call)) -> i64 {
    let lease = call.lease().await.expect("its turn");
    assert!(lease.token() > last, "not its turn");
    assert_eq!(scene.held("a").await.lease_id, lease.lease_id);
    probe.gives(name).await;
    lease.token()
}

/// A call may wait for three times its validity, and has all of that when its turn comes.
pub async fn a_wait_may_be_longer_than_the_validity(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    let held = scene.takes("a").await;
    let mut call = one.asks(&Ask::one("a").ttl(TTL).wait(WAIT));
    one.queued(&call, 1).await;
    sleep(TTL * 3).await;
    assert!(call.is_open());
    scene.in_line("a", 1).await;
    let released = boottime();
    scene.gives(&held).await;
    let lease = call.lease().await.expect("its turn");
    assert!(lease.valid && lease.at < released + SOON, "{lease:?}");
    let now = scene.held("a").await;
    scene.renewed("a", &now).await;
    assert!(one.state("a").await.valid);
}

/// Who waits is told its place, and that it moves up.
pub async fn a_waiter_is_told_its_place(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let (one, other) = (scene.one().await, scene.other().await);
    let held = scene.takes("a").await;
    let ahead = other.asks(&Ask::one("a").wait(WAIT));
    other.queued(&ahead, 1).await;
    let rival = scene.rival("a").await;
    let call = one.asks(&Ask::one("a").wait(WAIT));
    assert_eq!(one.queued(&call, 3).await, 3);
    other.cancel(&ahead).await;
    assert_eq!(one.queued(&call, 2).await, 2);
    scene.gives(&held).await;
    let (held, _) = rival.granted().await;
    assert_eq!(one.queued(&call, 1).await, 1);
    scene.gives(&held).await;
    let id = call.id;
    call.lease().await.expect("its turn");
    assert_eq!(one.places(id), [3, 2, 1]);
}

/// A wait that is cancelled leaves the line at once.
pub async fn a_cancelled_wait_leaves_the_line(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    let held = scene.takes("a").await;
    let call = one.asks(&Ask::one("a").ttl(LONG).wait(WAIT));
    one.queued(&call, 1).await;
    let rival = scene.rival("a").await;
    let begun = boottime();
    one.cancel(&call).await;
    let (_, outcome) = call.outcome().await;
    assert_eq!(outcome.expect_err("no lock").class, "Cancelled");
    scene.in_line("a", 1).await;
    let took = boottime() - begun;
    assert!(took < SOON, "{took:?} in line");
    scene.gives(&held).await;
    let (next, _) = rival.granted().await;
    assert_eq!(scene.held("a").await.token, next.token());
}

/// A wait that is cancelled while its grant is on the way gives the lock back.
pub async fn a_grant_that_crosses_a_cancel_is_given_back(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let proxy = Proxy::start(scene.deployment.addrs()[0]).await;
    let one = scene.one_at(&[proxy.addr()]).await;
    let held = scene.takes("a").await;
    let mut call = one.asks(&Ask::one("a").ttl(LONG).wait(WAIT));
    one.queued(&call, 1).await;
    proxy.set_mode(Mode::Delay(LATE));
    scene.gives(&held).await;
    assert!(scene.held("a").await.token > held.token(), "granted");
    assert!(call.is_open(), "the probe does not know yet");
    let begun = boottime();
    one.cancel(&call).await;
    let (_, outcome) = call.outcome().await;
    assert_eq!(outcome.expect_err("no lock").class, "Cancelled");
    proxy.set_mode(Mode::Forward);
    let took = scene.free("a").await - begun;
    assert!(took < LATE * 3 + SOON, "kept for {took:?}");
}

/// Cancels at any moment around the grant: the caller has the lock, or nobody has it.
pub async fn a_cancel_leaves_no_lock_behind(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    let (rounds, mut granted) = (count(200, 20), 0);
    for round in 0..rounds {
        let lock = format!("lock-{round}");
        let held = scene.takes(&lock).await;
        let call = one.asks(&Ask::one(&lock).ttl(LONG).wait(WAIT));
        one.queued(&call, 1).await;
        // Most grants are on the way for less than a millisecond.
        let time = Duration::from_millis(rand::thread_rng().gen_range(0..3));
        let begun = boottime();
        tokio::join!(scene.gives(&held), async {
            if !time.is_zero() {
                sleep(time).await;
            }
            one.cancel(&call).await;
        });
        let (_, outcome) = call.outcome().await;
        if let Err(failure) = outcome {
            assert_eq!(failure.class, "Cancelled");
        } else {
            granted += 1;
            assert!(one.state(&lock).await.valid && scene.is_held(&lock).await);
            one.gives(&lock).await;
        }
        let took = scene.free(&lock).await - begun;
        assert!(took < SOON * 2, "left behind for {took:?}");
    }
    figures(&format!(
        "suite {:?}: cancels={rounds} granted_before={granted} left_behind=0",
        cast.one
    ));
}
