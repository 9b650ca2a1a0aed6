//! Watching: what changes is told to a broker that wants to hear it, whichever broker changes it.

use leasehold_server::{
    lock::{Acquire, Force, Mode, Revoke, expiry_ms},
    store::{Change, ChangeKind, WATCHED_MS},
};

use crate::world::{SLACK_MS, TTL_MS, World, again, assert_left, with_mode};

fn kinds(changes: &[Change]) -> Vec<ChangeKind> {
    changes.iter().map(|change| change.kind).collect()
}

/// What broker 0 is told next, which must be these and nothing else, and of this call.
async fn told(world: &World, call: &Acquire, expected: &[ChangeKind]) -> Vec<Change> {
    let changes = world.changes(0, expected.len()).await;
    assert_eq!(kinds(&changes), expected, "{changes:?}");
    for change in &changes {
        assert_eq!(change.owner, call.owner);
        assert_eq!(change.mode, call.mode);
        let waits = matches!(change.kind, ChangeKind::Queued | ChangeKind::Abandoned);
        assert_eq!(change.lease_id, (!waits).then_some(call.lease_id));
        assert_eq!(change.fencing_token == 0, waits);
    }
    changes
}

fn from(world: &World, n: usize) -> Acquire {
    let mut call = world.call();
    call.owner.id = format!("of broker {n}|");
    call.owner.reason = "why\n!\n".to_owned();
    call
}

fn waits(call: Acquire) -> Acquire {
    Acquire {
        wait_ms: 60_000,
        ..call
    }
}

pub async fn nothing_is_told_before_somebody_watches(world: &World) {
    let before = world.held_by(0).await;
    world.release(0, &before).await;
    world.watched().await;
    let call = from(world, 0);
    world.granted(0, &call).await;
    told(world, &call, &[ChangeKind::Acquired]).await;
}

pub async fn a_holder_comes_and_goes(world: &World) {
    world.watched().await;
    for n in [0, 1] {
        let call = with_mode(from(world, n), Mode::Shared);
        let held = world.granted(n, &call).await;
        let changes = told(world, &call, &[ChangeKind::Acquired]).await;
        assert_eq!(changes[0].fencing_token, held.fencing_token.get());
        assert_left(changes[0].remaining_ms, expiry_ms(TTL_MS));
        world.release(1 - n, &held).await;
        let changes = told(world, &call, &[ChangeKind::Released]).await;
        assert_eq!(changes[0].fencing_token, held.fencing_token.get());
    }
}

pub async fn a_line_is_told_as_it_moves(world: &World) {
    world.watched().await;
    let (first, second) = (from(world, 2), waits(from(world, 2)));
    let held = world.granted(2, &first).await;
    told(world, &first, &[ChangeKind::Acquired]).await;
    world.queued(2, &second).await;
    let changes = told(world, &second, &[ChangeKind::Queued]).await;
    assert_left(changes[0].remaining_ms, 60_000);
    world.release(2, &held).await;
    let changes = world.changes(0, 2).await;
    let expected = [ChangeKind::Released, ChangeKind::Acquired];
    assert_eq!(kinds(&changes), expected);
    assert_eq!(changes[1].lease_id, Some(second.lease_id));
}

pub async fn a_hand_off_to_another_broker_is_told_when_it_is_claimed(world: &World) {
    world.watched().await;
    let (first, second) = (from(world, 1), waits(from(world, 2)));
    let held = world.granted(1, &first).await;
    world.queued(2, &second).await;
    world.release(1, &held).await;
    let hand_off = world.hand_off(2, &second).await;
    assert!(hand_off.provisional);
    let changes = world.changes(0, 3).await;
    let expected = [
        ChangeKind::Acquired,
        ChangeKind::Queued,
        ChangeKind::Released,
    ];
    assert_eq!(kinds(&changes), expected);
    let lease = crate::world::lease(&second, hand_off.fencing_token);
    world.renewed(2, &lease).await;
    let changes = told(world, &second, &[ChangeKind::Acquired]).await;
    assert_eq!(changes[0].fencing_token, lease.fencing_token.get());
}

pub async fn those_who_leave_the_line_are_told(world: &World) {
    world.watched().await;
    let holder = from(world, 0);
    let held = world.granted(0, &holder).await;
    let (gives_up, times_out) = (waits(from(world, 1)), waits(from(world, 1)));
    let times_out = Acquire {
        wait_ms: 500,
        ..times_out
    };
    world.queued(1, &gives_up).await;
    world.queued(1, &times_out).await;
    world.changes(0, 3).await;
    world.cancel(1, &gives_up).await;
    told(world, &gives_up, &[ChangeKind::Abandoned]).await;
    world.advance_ms(1_000).await;
    world.release(0, &held).await;
    let changes = world.changes(0, 2).await;
    let expected = [ChangeKind::Released, ChangeKind::Abandoned];
    assert_eq!(kinds(&changes), expected);
    assert_eq!(changes[1].owner, times_out.owner);
}

pub async fn how_a_lease_ended_is_told(world: &World) {
    world.watched().await;
    let expires = from(world, 1);
    world.granted(1, &expires).await;
    told(world, &expires, &[ChangeKind::Acquired]).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    world.watched().await;
    let revoked = from(world, 1);
    let held = world.granted(1, &revoked).await;
    let changes = world.changes(0, 2).await;
    let expected = [ChangeKind::Expired, ChangeKind::Acquired];
    assert_eq!(kinds(&changes), expected);
    assert_eq!(changes[0].lease_id, Some(expires.lease_id));
    let revoke = Revoke {
        lock: held.lock.clone(),
        lease_id: held.lease_id,
        reason: "why".to_owned(),
        grace_ms: 0,
        lock_delay_ms: None,
        force: Force::Unsafe,
    };
    world.store(2).revoke(&revoke).await.expect("revoke");
    told(world, &revoked, &[ChangeKind::Revoked]).await;
}

pub async fn a_repeat_is_not_told_again(world: &World) {
    world.watched().await;
    let call = from(world, 1);
    let held = world.granted(1, &call).await;
    world.granted(2, &again(&call)).await;
    world.renewed(1, &held).await;
    let second = waits(from(world, 2));
    world.queued(2, &second).await;
    world.queued(1, &again(&second)).await;
    world.cancel(1, &call).await;
    world.release(1, &held).await;
    let changes = world.changes(0, 4).await;
    let expected = [
        ChangeKind::Acquired,
        ChangeKind::Queued,
        ChangeKind::Released,
        ChangeKind::Acquired,
    ];
    assert_eq!(kinds(&changes), expected);
}

pub async fn nothing_is_told_when_nobody_watches_any_more(world: &World) {
    world.watched().await;
    world.advance_ms(WATCHED_MS + SLACK_MS).await;
    tokio::time::sleep(std::time::Duration::from_millis(WATCHED_MS + SLACK_MS)).await;
    let unseen = from(world, 1);
    let held = world.granted(1, &unseen).await;
    world.release(1, &held).await;
    world.watched().await;
    let seen = from(world, 1);
    world.granted(1, &seen).await;
    told(world, &seen, &[ChangeKind::Acquired]).await;
}
