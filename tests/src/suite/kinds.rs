//! Shared locks, semaphores, several locks, and one lock entered again.

use std::time::Duration;

use serde_json::json;

use super::{
    language::Cast,
    scene::{Scene, TTL},
    wire::Ask,
};

const WAIT: Duration = Duration::from_secs(60);

/// Readers share a lock; a writer in line stops readers behind it, and is alone when its turn comes.
pub async fn readers_share_and_a_writer_has_its_turn(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let (one, other) = (scene.one().await, scene.other().await);
    one.takes(&Ask::shared("a").called("first")).await;
    other.takes(&Ask::shared("a").called("second")).await;
    let holders = async || scene.state("a").await.map_or(0, |state| state.holder_count);
    assert_eq!(holders().await, 2);
    assert!(scene.is_held("a").await, "a writer beside readers");
    let writer = one.asks(&Ask::one("a").called("writer").wait(WAIT));
    one.queued(&writer, 1).await;
    let mut reader = other.asks(&Ask::shared("a").called("third").wait(WAIT));
    other.queued(&reader, 2).await;
    one.gives("first").await;
    other.gives("second").await;
    let writer = writer.lease().await.expect("its turn");
    assert_eq!(scene.held("a").await.lease_id, writer.lease_id);
    assert!(holders().await == 1 && reader.is_open());
    one.gives("writer").await;
    assert!(reader.lease().await.expect("its turn").token() > writer.token());
}

/// Permits are given out up to the limit.
pub async fn permits_add_up_to_the_limit(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let (one, other) = (scene.one().await, scene.other().await);
    let ask = |permits| Ask::permits("a", permits, 5);
    one.takes(&ask(3).called("three")).await;
    other.takes(&ask(2).called("two")).await;
    let more = one.tries(&ask(1).called("more")).await;
    assert!(more.expect("an answer").is_none(), "6 of 5");
    let mut call = one.asks(&ask(3).called("next").wait(WAIT));
    one.queued(&call, 1).await;
    other.gives("two").await;
    assert!(call.is_open(), "6 of 5");
    one.gives("three").await;
    call.lease().await.expect("3 of 5");
    let state = scene.state("a").await.expect("it is held");
    assert_eq!((state.holder_count, state.queue_length), (1, 0));
}

/// Several locks are taken under one lease, all or none.
pub async fn several_locks_are_taken_all_or_none(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    let held = scene.takes("b").await;
    let names = ["a", "b", "c"];
    let all = Ask::all("all", names.map(|name| json!({ "name": name }))).ttl(TTL);
    assert!(one.tries(&all).await.expect("an answer").is_none());
    assert_eq!((scene.look("a").await, scene.look("c").await), (None, None));
    let call = one.asks(&all.clone().wait(WAIT));
    scene.in_line("b", 1).await;
    scene.gives(&held).await;
    let lease = call.lease().await.expect("its turn");
    for (name, token) in names.iter().zip(&lease.tokens) {
        let now = scene.held(name).await;
        assert_eq!((&now.lease_id, now.token), (&lease.lease_id, *token));
        scene.renewed(name, &now).await;
    }
    one.gives("all").await;
    for name in names {
        assert_eq!(scene.look(name).await, None);
    }
}

/// A lock is entered again without waiting, under the same token, and is free when nobody is in it.
pub async fn a_lease_is_entered_and_left_in_any_order(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    let outer = one.takes(&Ask::one("a").called("outer")).await;
    let rival = scene.rival("a").await;
    let entry = Ask::one("a").called("inner").under("outer");
    for (first, last) in [("inner", None), ("outer", Some("inner"))] {
        let inner = one.takes(&entry).await;
        assert_eq!(
            (&inner.lease_id, inner.token()),
            (&outer.lease_id, outer.token())
        );
        one.gives(first).await;
        assert_eq!(scene.held("a").await.lease_id, outer.lease_id);
        assert!(one.state(last.unwrap_or("outer")).await.valid && !rival.is_granted());
    }
    one.gives("inner").await;
    rival.granted().await;
}

/// A lock that was added to a lease is given back alone; the others stay.
pub async fn a_lock_is_added_to_a_lease_and_given_back_alone(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    let a = one.takes(&Ask::one("a").ttl(TTL)).await;
    let b = one.takes(&Ask::one("b").under("a")).await;
    assert_eq!(b.lease_id, a.lease_id);
    assert_eq!(scene.held("b").await.token, b.token());
    one.gives("b").await;
    assert_eq!(scene.look("b").await, None);
    let now = scene.held("a").await;
    scene.renewed("a", &now).await;
    assert!(one.state("a").await.valid && one.loss("a").is_none());
    one.gives("a").await;
    assert_eq!(scene.look("a").await, None);
    let late = one.acquire(&Ask::one("c").under("a")).await;
    assert_eq!(late.expect_err("the lease is over").class, "LeaseLost");
}

/// Two locks are added to a lease at the same time, and the first to be asked for is granted last: the lease
/// keeps all of them.
pub async fn locks_that_are_added_at_the_same_time_are_all_kept(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    let a = one.takes(&Ask::one("a").ttl(TTL)).await;
    let held = scene.takes("b").await;
    let first = one.asks(&Ask::one("b").under("a").wait(WAIT));
    one.queued(&first, 1).await;
    let c = one.takes(&Ask::one("c").under("a")).await;
    scene.gives(&held).await;
    let b = first.lease().await.expect("its turn");
    // For longer than the lease is valid without a renewal that the client believes.
    for _ in 0..5 {
        for (lock, lease) in [("a", &a), ("b", &b), ("c", &c)] {
            let now = scene.held(lock).await;
            assert_eq!((&now.lease_id, now.token), (&a.lease_id, lease.token()));
            scene.renewed(lock, &now).await;
        }
    }
    assert!(one.state("a").await.valid && one.loss("a").is_none());
}

/// Two calls of a lease wait for the same lock: the lease gets it for one, and enters it for the other,
/// although somebody waits between them.
pub async fn two_queued_calls_of_a_lease_for_the_same_lock_are_both_granted(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    let a = one.takes(&Ask::one("a")).await;
    let held = scene.takes("b").await;
    let ask = Ask::one("b").under("a").wait(WAIT);
    let first = one.asks(&ask.clone().called("first"));
    one.queued(&first, 1).await;
    let rival = scene.rival("b").await;
    let second = one.asks(&ask.called("second"));
    one.queued(&second, 3).await;
    scene.gives(&held).await;
    let first = first.lease().await.expect("its turn");
    let second = second.lease().await.expect("its lease holds the lock");
    assert_eq!(
        (&first.lease_id, &second.lease_id),
        (&a.lease_id, &a.lease_id)
    );
    assert_eq!(first.token(), second.token());
    one.gives("first").await;
    assert!(scene.held("b").await.token == second.token() && !rival.is_granted());
    one.gives("second").await;
    rival.granted().await;
}

/// A reader does not become the writer.
pub async fn an_upgrade_is_denied(cast: Cast) {
    let scene = Scene::start(cast, 1).await;
    let one = scene.one().await;
    one.takes(&Ask::shared("a").called("reader")).await;
    let upgrade = one.acquire(&Ask::one("a").under("reader")).await;
    assert_eq!(upgrade.expect_err("it only reads").class, "UpgradeDenied");
    assert!(one.state("reader").await.valid);
}
