//! Scenarios of shared locks, semaphores, several locks, and re-entry.

use std::time::Duration;

use leasehold_proto::v1::hold_response::Message as Response;
use serde_json::json;

use super::{
    language::Cast,
    messages::{Lease, ProbeAcquire},
    scenario::{ScenarioFixture, TTL},
};
use crate::net::{
    capturing_proxy::CapturingProxy,
    http2_proxy::{Direction, Http2Proxy, ProxyMode},
};

const WAIT: Duration = Duration::from_secs(60);
/// Number of holders after a partial release. It is larger than the number of released leases of a
/// lock that the store remembers.
const OTHER_HOLDERS: usize = 30;

/// Readers share a lock. A queued writer blocks the readers behind it, and is alone when it is
/// granted.
pub async fn readers_share_and_a_writer_has_its_turn(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let (one, other) = (
        fixture.start_tested_probe().await,
        fixture.start_other_probe().await,
    );
    one.expect_acquired(&ProbeAcquire::shared("a").with_lease_name("first"))
        .await;
    other
        .expect_acquired(&ProbeAcquire::shared("a").with_lease_name("second"))
        .await;
    let holders = async || {
        fixture
            .state("a")
            .await
            .map_or(0, |state| state.holder_count)
    };
    assert_eq!(holders().await, 2);
    assert!(
        fixture.is_rejected_as_held("a").await,
        "a writer beside readers"
    );
    let writer = one.start_acquire(
        &ProbeAcquire::exclusive("a")
            .with_lease_name("writer")
            .with_wait(WAIT),
    );
    one.wait_for_position(&writer, 1).await;
    let mut reader = other.start_acquire(
        &ProbeAcquire::shared("a")
            .with_lease_name("third")
            .with_wait(WAIT),
    );
    other.wait_for_position(&reader, 2).await;
    one.expect_released("first").await;
    other.expect_released("second").await;
    let writer = writer.lease().await.expect("its turn");
    assert_eq!(fixture.expect_holder("a").await.lease_id, writer.lease_id);
    assert!(holders().await == 1 && reader.is_pending());
    one.expect_released("writer").await;
    assert!(reader.lease().await.expect("its turn").token() > writer.token());
}

/// Permits are granted up to the limit.
pub async fn permits_add_up_to_the_limit(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let (one, other) = (
        fixture.start_tested_probe().await,
        fixture.start_other_probe().await,
    );
    let ask = |permits| ProbeAcquire::permits("a", permits, 5);
    one.expect_acquired(&ask(3).with_lease_name("three")).await;
    other.expect_acquired(&ask(2).with_lease_name("two")).await;
    let more = one.try_acquire(&ask(1).with_lease_name("more")).await;
    assert!(more.expect("an answer").is_none(), "6 of 5");
    let mut call = one.start_acquire(&ask(3).with_lease_name("next").with_wait(WAIT));
    one.wait_for_position(&call, 1).await;
    other.expect_released("two").await;
    assert!(call.is_pending(), "6 of 5");
    one.expect_released("three").await;
    call.lease().await.expect("3 of 5");
    let state = fixture.state("a").await.expect("it is held");
    assert_eq!((state.holder_count, state.queue_length), (1, 0));
}

/// A limit that an application sets is followed, whatever limit calls send, until it is removed.
pub async fn a_set_limit_is_followed_until_it_is_removed(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let ask = |lease| ProbeAcquire::permits("a", 1, 9).with_lease_name(lease);
    assert_eq!(one.set_limit("a", 1).await, None);
    one.expect_acquired(&ask("first")).await;
    let second = one.try_acquire(&ask("second")).await;
    assert!(second.expect("an answer").is_none(), "2 of 1");
    assert_eq!(one.set_limit("a", 2).await, Some(1));
    one.expect_acquired(&ask("second")).await;
    let usage = fixture.state("a").await.expect("it is held").permit_usage;
    let usage = usage.expect("a semaphore");
    assert_eq!((usage.limit, usage.used, usage.is_limit_set), (2, 2, true));
    assert_eq!(one.set_limit("a", 0).await, Some(2), "the removed limit");
    for lease in ["first", "second"] {
        one.expect_released(lease).await;
    }
    assert_eq!(one.set_limit("a", 0).await, None, "no limit is set");
    one.expect_acquired(&ProbeAcquire::exclusive("a")).await;
    let call = one.start_set_limit("a", 2);
    let refused = call.outcome().await.1.expect_err("an exclusive lock");
    assert_eq!(refused.class, "LimitMismatch");
}

/// Several locks are acquired under one lease, all or none.
pub async fn several_locks_are_taken_all_or_none(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let held = fixture.expect_acquired("b").await;
    let names = ["a", "b", "c"];
    let all = ProbeAcquire::all("all", names.map(|name| json!({ "name": name }))).with_ttl(TTL);
    assert!(one.try_acquire(&all).await.expect("an answer").is_none());
    assert_eq!(
        (fixture.holder("a").await, fixture.holder("c").await),
        (None, None)
    );
    let call = one.start_acquire(&all.clone().with_wait(WAIT));
    fixture.wait_for_queue_length("b", 1).await;
    fixture.expect_released(&held).await;
    let lease = call.lease().await.expect("its turn");
    for (name, token) in names.iter().zip(&lease.tokens) {
        let now = fixture.expect_holder(name).await;
        assert_eq!((&now.lease_id, now.token), (&lease.lease_id, *token));
        fixture.wait_until_renewed(name, &now).await;
    }
    one.expect_released("all").await;
    for name in names {
        assert_eq!(fixture.holder(name).await, None);
    }
}

/// A lock is entered again without waiting, with the same token, and is free after its last entry
/// is released.
pub async fn a_lease_is_entered_and_left_in_any_order(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let outer = one
        .expect_acquired(&ProbeAcquire::exclusive("a").with_lease_name("outer"))
        .await;
    let rival = fixture.enqueue_rival("a").await;
    let entry = ProbeAcquire::exclusive("a")
        .with_lease_name("inner")
        .under_lease("outer");
    for (first, last) in [("inner", None), ("outer", Some("inner"))] {
        let inner = one.expect_acquired(&entry).await;
        assert_eq!(
            (&inner.lease_id, inner.token()),
            (&outer.lease_id, outer.token())
        );
        one.expect_released(first).await;
        assert_eq!(fixture.expect_holder("a").await.lease_id, outer.lease_id);
        assert!(one.state(last.unwrap_or("outer")).await.valid && !rival.is_granted());
    }
    one.expect_released("inner").await;
    rival.wait_for_grant().await;
}

/// A lock that was added to a lease is released alone, and the lease keeps its other locks.
pub async fn a_lock_is_added_to_a_lease_and_given_back_alone(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let a = one
        .expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(TTL))
        .await;
    let b = one
        .expect_acquired(&ProbeAcquire::exclusive("b").under_lease("a"))
        .await;
    assert_eq!(b.lease_id, a.lease_id);
    assert_eq!(fixture.expect_holder("b").await.token, b.token());
    one.expect_released("b").await;
    assert_eq!(fixture.holder("b").await, None);
    let now = fixture.expect_holder("a").await;
    fixture.wait_until_renewed("a", &now).await;
    assert!(one.state("a").await.valid && one.loss("a").is_none());
    one.expect_released("a").await;
    assert_eq!(fixture.holder("a").await, None);
    let late = one
        .acquire(&ProbeAcquire::exclusive("c").under_lease("a"))
        .await;
    assert_eq!(late.expect_err("the lease is over").class, "LeaseLost");
}

/// Two locks are added to a lease at the same time, and the add that was sent first is granted
/// last, on a lock for which others wait. The lease keeps all its locks, and each of them is
/// released alone.
pub async fn locks_that_are_added_at_the_same_time_are_all_kept(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let a = one
        .expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(TTL))
        .await;
    let held = fixture.expect_acquired("b").await;
    let first = one.start_acquire(
        &ProbeAcquire::exclusive("b")
            .under_lease("a")
            .with_wait(WAIT),
    );
    one.wait_for_position(&first, 1).await;
    let rival = fixture.enqueue_rival("b").await;
    let c = one
        .expect_acquired(&ProbeAcquire::exclusive("c").under_lease("a"))
        .await;
    fixture.expect_released(&held).await;
    let b = first.lease().await.expect("its turn");
    let mut kept = vec![("a", a.clone()), ("b", b), ("c", c)];
    // The loop takes longer than the lease is valid without a renewal that the client accepts.
    for _ in 0..5 {
        assert_renewed_under_one_lease(&fixture, &kept).await;
    }
    assert!(one.state("a").await.valid && one.loss("a").is_none());
    assert!(!rival.is_granted());
    for released in ["b", "c"] {
        one.expect_released(released).await;
        kept.retain(|(lock, _)| *lock != released);
        assert_renewed_under_one_lease(&fixture, &kept).await;
    }
    rival.wait_for_grant().await;
    assert_eq!(fixture.holder("c").await, None);
    assert!(one.state("a").await.valid && one.loss("a").is_none());
    one.expect_released("a").await;
    assert_eq!(fixture.holder("a").await, None);
}

/// Asserts that the locks are held by the same lease with the tokens of their grants, and waits
/// until each of them is renewed.
async fn assert_renewed_under_one_lease(fixture: &ScenarioFixture, grants: &[(&str, Lease)]) {
    let (_, first) = grants.first().expect("a lock is held");
    for (lock, granted) in grants {
        let now = fixture.expect_holder(lock).await;
        assert_eq!(
            (&now.lease_id, now.token),
            (&first.lease_id, granted.token())
        );
        fixture.wait_until_renewed(lock, &now).await;
    }
}

/// One lock of a lease is released, and many other holders acquire and release it before the client
/// receives the reply. The repeat of the release reports that the lock is already released, and the
/// lease keeps its other lock.
pub async fn a_partial_release_is_remembered_after_thirty_other_holders(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let proxy = Http2Proxy::start(fixture.deployment.addrs()[0]).await;
    let capture = CapturingProxy::start(proxy.addr()).await;
    let one = fixture.start_tested_probe_at(&[capture.addr()]).await;
    let a = one
        .expect_acquired(&ProbeAcquire::exclusive("a").with_ttl(TTL * 5))
        .await;
    let b = one
        .expect_acquired(&ProbeAcquire::exclusive("b").under_lease("a"))
        .await;
    assert_eq!(b.lease_id, a.lease_id);
    let copy = capture.granted_leases().pop().expect("it was granted");
    proxy.set_mode(ProxyMode::DropFrames(Direction::ToClient));
    let mut release = one.start_command_with("release", json!({"lease": "b"}));
    fixture.wait_until_free("b").await;
    for _ in 0..OTHER_HOLDERS {
        let other = fixture.expect_acquired("b").await;
        assert!(other.token() > b.token());
        fixture.expect_released(&other).await;
    }
    assert!(release.is_pending(), "the reply was dropped");
    proxy.set_mode(ProxyMode::Forward);
    proxy.close_connections().await;
    release.outcome().await.1.expect("it was released");
    let repeated = fixture.observer.release_lock_at(0, &copy, "b").await;
    let repeated = repeated.expect("the lease is held");
    assert!(repeated.already_released, "{repeated:?}");
    let mut released = capture.broker_messages().into_iter().filter_map(|message| {
        let Response::Released(released) = message else {
            return None;
        };
        Some(released.already_released)
    });
    assert_eq!(released.next_back(), Some(true), "the reply to the repeat");
    let now = fixture.expect_holder("a").await;
    assert_eq!((&now.lease_id, now.token), (&a.lease_id, a.token()));
    fixture.wait_until_renewed("a", &now).await;
    assert!(one.state("a").await.valid && one.loss("a").is_none());
    assert_eq!(fixture.holder("b").await, None);
    one.expect_released("a").await;
    assert_eq!(fixture.holder("a").await, None);
}

/// Two calls of a lease wait for the same lock. The first acquires it, and the second enters it,
/// although another caller waits between them.
pub async fn two_queued_calls_of_a_lease_for_the_same_lock_are_both_granted(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    let a = one.expect_acquired(&ProbeAcquire::exclusive("a")).await;
    let held = fixture.expect_acquired("b").await;
    let ask = ProbeAcquire::exclusive("b")
        .under_lease("a")
        .with_wait(WAIT);
    let first = one.start_acquire(&ask.clone().with_lease_name("first"));
    one.wait_for_position(&first, 1).await;
    let rival = fixture.enqueue_rival("b").await;
    let second = one.start_acquire(&ask.with_lease_name("second"));
    one.wait_for_position(&second, 3).await;
    fixture.expect_released(&held).await;
    let first = first.lease().await.expect("its turn");
    let second = second.lease().await.expect("its lease holds the lock");
    assert_eq!(
        (&first.lease_id, &second.lease_id),
        (&a.lease_id, &a.lease_id)
    );
    assert_eq!(first.token(), second.token());
    one.expect_released("first").await;
    assert!(fixture.expect_holder("b").await.token == second.token() && !rival.is_granted());
    one.expect_released("second").await;
    rival.wait_for_grant().await;
}

/// The upgrade of a shared lock to an exclusive one is rejected.
pub async fn an_upgrade_is_denied(cast: Cast) {
    let fixture = ScenarioFixture::start(cast, 1).await;
    let one = fixture.start_tested_probe().await;
    one.expect_acquired(&ProbeAcquire::shared("a").with_lease_name("reader"))
        .await;
    let upgrade = one
        .acquire(&ProbeAcquire::exclusive("a").under_lease("reader"))
        .await;
    assert_eq!(upgrade.expect_err("it only reads").class, "UpgradeDenied");
    assert!(one.state("reader").await.valid);
}
