//! Watches: changes by any broker are sent to the brokers that watch.

use leasehold_server::{
    lock::{AcquireCommand, Mode, RevokeCommand, RevokeMode, expiry_ms},
    store::{Change, ChangeKind, WATCHED_MS},
};

use crate::store_fixture::{
    SLACK_MS, StoreFixture, TTL_MS, assert_remaining, new_attempt, with_mode,
};

const CLOSED_MS: u64 = 60_000;

fn kinds(changes: &[Change]) -> Vec<ChangeKind> {
    changes.iter().map(|change| change.kind).collect()
}

/// Receives the next changes of broker 0 and asserts that they have the `expected` kinds and belong
/// to `call`.
async fn expect_changes(
    store_fixture: &StoreFixture,
    call: &AcquireCommand,
    expected: &[ChangeKind],
) -> Vec<Change> {
    let changes = store_fixture.next_changes(0, expected.len()).await;
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

fn call_by(store_fixture: &StoreFixture, n: usize) -> AcquireCommand {
    let mut call = store_fixture.call();
    call.owner.id = format!("of broker {n}|");
    call.owner.reason = "why\n!\n".to_owned();
    call
}

fn with_wait(call: AcquireCommand) -> AcquireCommand {
    AcquireCommand {
        wait_ms: 60_000,
        ..call
    }
}

pub async fn changes_are_not_published_without_a_watch(store_fixture: &StoreFixture) {
    let before = store_fixture.acquire_long(0).await;
    store_fixture.expect_released(0, &before).await;
    store_fixture.start_watch().await;
    let call = call_by(store_fixture, 0);
    store_fixture.expect_granted(0, &call).await;
    expect_changes(store_fixture, &call, &[ChangeKind::Acquired]).await;
}

pub async fn a_holder_comes_and_goes(store_fixture: &StoreFixture) {
    store_fixture.start_watch().await;
    for n in [0, 1] {
        let call = with_mode(call_by(store_fixture, n), Mode::Shared);
        let held = store_fixture.expect_granted(n, &call).await;
        let changes = expect_changes(store_fixture, &call, &[ChangeKind::Acquired]).await;
        assert_eq!(changes[0].fencing_token, held.fencing_token.get());
        assert_remaining(changes[0].remaining_ms, expiry_ms(TTL_MS));
        store_fixture.expect_released(1 - n, &held).await;
        let changes = expect_changes(store_fixture, &call, &[ChangeKind::Released]).await;
        assert_eq!(changes[0].fencing_token, held.fencing_token.get());
    }
}

pub async fn a_closure_begins_and_ends(store_fixture: &StoreFixture) {
    store_fixture.start_watch().await;
    let mut call = call_by(store_fixture, 1);
    call.options.at_least_ms = CLOSED_MS;
    let held = store_fixture.expect_granted(1, &call).await;
    store_fixture.expect_released(1, &held).await;
    let changes = store_fixture.next_changes(0, 3).await;
    let expected = [
        ChangeKind::Acquired,
        ChangeKind::Released,
        ChangeKind::Closed,
    ];
    assert_eq!(kinds(&changes), expected);
    assert_eq!(
        (&changes[2].owner, changes[2].lease_id),
        (&call.owner, None)
    );
    assert_remaining(changes[2].remaining_ms, CLOSED_MS);
    store_fixture.open(2).await;
    let changes = store_fixture.next_changes(0, 1).await;
    assert_eq!(kinds(&changes), [ChangeKind::Opened]);
    assert_eq!(changes[0].owner, call.owner);
    assert_remaining(changes[0].remaining_ms, CLOSED_MS);
}

pub async fn changes_of_a_queue_are_published(store_fixture: &StoreFixture) {
    store_fixture.start_watch().await;
    let (first, second) = (
        call_by(store_fixture, 2),
        with_wait(call_by(store_fixture, 2)),
    );
    let held = store_fixture.expect_granted(2, &first).await;
    expect_changes(store_fixture, &first, &[ChangeKind::Acquired]).await;
    store_fixture.expect_queued(2, &second).await;
    let changes = expect_changes(store_fixture, &second, &[ChangeKind::Queued]).await;
    assert_remaining(changes[0].remaining_ms, 60_000);
    store_fixture.expect_released(2, &held).await;
    let changes = store_fixture.next_changes(0, 2).await;
    let expected = [ChangeKind::Released, ChangeKind::Acquired];
    assert_eq!(kinds(&changes), expected);
    assert_eq!(changes[1].lease_id, Some(second.lease_id));
}

pub async fn a_hand_off_to_another_broker_is_published_when_it_is_claimed(
    store_fixture: &StoreFixture,
) {
    store_fixture.start_watch().await;
    let (first, second) = (
        call_by(store_fixture, 1),
        with_wait(call_by(store_fixture, 2)),
    );
    let held = store_fixture.expect_granted(1, &first).await;
    store_fixture.expect_queued(2, &second).await;
    store_fixture.expect_released(1, &held).await;
    let hand_off = store_fixture.next_hand_off(2, &second).await;
    assert!(hand_off.is_provisional);
    let changes = store_fixture.next_changes(0, 3).await;
    let expected = [
        ChangeKind::Acquired,
        ChangeKind::Queued,
        ChangeKind::Released,
    ];
    assert_eq!(kinds(&changes), expected);
    let lease = crate::store_fixture::lease_of(&second, hand_off.fencing_token);
    store_fixture.expect_renewed(2, &lease).await;
    let changes = expect_changes(store_fixture, &second, &[ChangeKind::Acquired]).await;
    assert_eq!(changes[0].fencing_token, lease.fencing_token.get());
}

pub async fn waiters_that_leave_the_queue_are_published(store_fixture: &StoreFixture) {
    store_fixture.start_watch().await;
    let holder = call_by(store_fixture, 0);
    let held = store_fixture.expect_granted(0, &holder).await;
    let (gives_up, times_out) = (
        with_wait(call_by(store_fixture, 1)),
        with_wait(call_by(store_fixture, 1)),
    );
    let times_out = AcquireCommand {
        wait_ms: 500,
        ..times_out
    };
    store_fixture.expect_queued(1, &gives_up).await;
    store_fixture.expect_queued(1, &times_out).await;
    store_fixture.next_changes(0, 3).await;
    store_fixture.cancel(1, &gives_up).await;
    expect_changes(store_fixture, &gives_up, &[ChangeKind::Abandoned]).await;
    store_fixture.advance_ms(1_000).await;
    store_fixture.expect_released(0, &held).await;
    let changes = store_fixture.next_changes(0, 2).await;
    let expected = [ChangeKind::Released, ChangeKind::Abandoned];
    assert_eq!(kinds(&changes), expected);
    assert_eq!(changes[1].owner, times_out.owner);
}

pub async fn the_cause_of_a_lease_end_is_reported(store_fixture: &StoreFixture) {
    store_fixture.start_watch().await;
    let expires = call_by(store_fixture, 1);
    store_fixture.expect_granted(1, &expires).await;
    expect_changes(store_fixture, &expires, &[ChangeKind::Acquired]).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    store_fixture.start_watch().await;
    let revoked = call_by(store_fixture, 1);
    let held = store_fixture.expect_granted(1, &revoked).await;
    let changes = store_fixture.next_changes(0, 2).await;
    let expected = [ChangeKind::Expired, ChangeKind::Acquired];
    assert_eq!(kinds(&changes), expected);
    assert_eq!(changes[0].lease_id, Some(expires.lease_id));
    let revoke = RevokeCommand {
        lock: held.lock.clone(),
        lease_id: held.lease_id,
        reason: "why".to_owned(),
        grace_ms: 0,
        lock_delay_ms: None,
        mode: RevokeMode::Immediate,
    };
    let reply = store_fixture.store(2).revoke(&revoke).await;
    assert!(matches!(reply, Ok(Ok(_))), "{reply:?}");
    expect_changes(store_fixture, &revoked, &[ChangeKind::Revoked]).await;
}

pub async fn a_repeat_is_not_published_again(store_fixture: &StoreFixture) {
    store_fixture.start_watch().await;
    let call = call_by(store_fixture, 1);
    let held = store_fixture.expect_granted(1, &call).await;
    store_fixture.expect_granted(2, &new_attempt(&call)).await;
    store_fixture.expect_renewed(1, &held).await;
    let second = with_wait(call_by(store_fixture, 2));
    store_fixture.expect_queued(2, &second).await;
    store_fixture.expect_queued(1, &new_attempt(&second)).await;
    store_fixture.cancel(1, &call).await;
    store_fixture.expect_released(1, &held).await;
    let changes = store_fixture.next_changes(0, 4).await;
    let expected = [
        ChangeKind::Acquired,
        ChangeKind::Queued,
        ChangeKind::Released,
        ChangeKind::Acquired,
    ];
    assert_eq!(kinds(&changes), expected);
}

pub async fn changes_are_not_published_after_the_last_watch(store_fixture: &StoreFixture) {
    store_fixture.start_watch().await;
    store_fixture.advance_ms(WATCHED_MS + SLACK_MS).await;
    tokio::time::sleep(std::time::Duration::from_millis(WATCHED_MS + SLACK_MS)).await;
    let unseen = call_by(store_fixture, 1);
    let held = store_fixture.expect_granted(1, &unseen).await;
    store_fixture.expect_released(1, &held).await;
    store_fixture.start_watch().await;
    let seen = call_by(store_fixture, 1);
    store_fixture.expect_granted(1, &seen).await;
    expect_changes(store_fixture, &seen, &[ChangeKind::Acquired]).await;
}
