//! Revocation: an operator ends the hold of another caller's lease on a lock.

use leasehold_server::{
    lock::{
        AcquireCommand, Attachment, EXPIRED_MS, ExpectedAttachment, Grant, LeaseBinding, LeaseRef,
        Mode, PROVISIONAL_GRANT_MS, RELEASED_MAX, RevokeCommand, RevokeMode, StreamId,
        TOMBSTONE_MS, expiry_ms,
    },
    store::{Acquired, LeaseRejection, LeaseReply, Released, Renewal, Revoked},
};

use crate::store_fixture::{
    SLACK_MS, StoreFixture, TTL_MAX_MS, TTL_MS, assert_remaining, at_most_one, lease_of,
    new_attempt, released_now, with_hold_and_delay, with_mode,
};

const REASON: &str = "a|b\n!\"ä";
const DELAY_MS: u64 = 8_000;

fn revoke_command(lease: &LeaseRef, grace_ms: u64) -> RevokeCommand {
    RevokeCommand {
        lock: lease.lock.clone(),
        lease_id: lease.lease_id,
        reason: REASON.to_owned(),
        grace_ms,
        lock_delay_ms: None,
        mode: RevokeMode::Graceful,
    }
}

fn unsafe_revoke_command(lease: &LeaseRef) -> RevokeCommand {
    RevokeCommand {
        mode: RevokeMode::Immediate,
        ..revoke_command(lease, 0)
    }
}

async fn send_revoke(
    store_fixture: &StoreFixture,
    n: usize,
    revoke: &RevokeCommand,
) -> LeaseReply<Revoked> {
    store_fixture.store(n).revoke(revoke).await.expect("revoke")
}

/// Revokes by broker `n`, which must find the lease. Returns the queue length.
async fn expect_revoked(store_fixture: &StoreFixture, n: usize, revoke: &RevokeCommand) -> u32 {
    let reply = send_revoke(store_fixture, n, revoke).await;
    let Ok(Revoked::Taken(revoked)) = reply else {
        panic!("{reply:?} instead of a holder");
    };
    assert_eq!(revoked.holder.lease_id, revoke.lease_id);
    revoked.queue_length
}

fn revoked_renewal() -> LeaseReply<Grant> {
    Err(LeaseRejection::Revoked {
        reason: REASON.to_owned(),
    })
}

fn revoked_release() -> LeaseReply<Released> {
    Err(LeaseRejection::Revoked {
        reason: REASON.to_owned(),
    })
}

async fn remaining_ms(store_fixture: &StoreFixture) -> u64 {
    at_most_one(store_fixture.expect_state().await.holders)
        .expect("held")
        .remaining_ms
}

async fn renewed_ttl_ms(store_fixture: &StoreFixture, lease: &LeaseRef) -> u64 {
    let reply = store_fixture.renew(0, lease).await;
    let Ok(grant) = reply else {
        panic!("{reply:?} instead of a renewal");
    };
    grant.ttl.as_millis()
}

pub async fn a_revoked_lease_is_renewed_no_more_and_holds_until_it_has_run_out(
    store_fixture: &StoreFixture,
) {
    let held = store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture.advance_ms(2_000).await;
    expect_revoked(store_fixture, 1, &revoke_command(&held, 0)).await;
    for n in [0, 1] {
        assert_eq!(store_fixture.renew(n, &held).await, revoked_renewal());
    }
    store_fixture.expect_held(0, &store_fixture.call()).await;
    store_fixture
        .advance_ms(expiry_ms(TTL_MS) - 2_000 - 2 * SLACK_MS)
        .await;
    store_fixture.expect_held(0, &store_fixture.call()).await;
    store_fixture.advance_ms(2 * SLACK_MS).await;
    let next = store_fixture.expect_granted(0, &store_fixture.call()).await;
    assert!(next.fencing_token > held.fencing_token);
    assert_eq!(store_fixture.renew(0, &held).await, revoked_renewal());
    assert_eq!(store_fixture.release(0, &held).await, revoked_release());
}

pub async fn a_revoked_lease_that_is_given_back_is_free_at_once(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    expect_revoked(store_fixture, 1, &revoke_command(&held, 0)).await;
    let released = released_now(0);
    assert_eq!(store_fixture.release(0, &held).await, released);
    store_fixture.acquire_long(1).await;
    assert_eq!(
        store_fixture.renew(0, &held).await,
        Err(LeaseRejection::Released)
    );
}

pub async fn a_revocation_never_shortens_a_validity(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    expect_revoked(store_fixture, 0, &revoke_command(&held, 0)).await;
    assert_remaining(remaining_ms(store_fixture).await, expiry_ms(TTL_MAX_MS));
}

pub async fn a_grace_lets_the_lease_be_renewed_until_its_end(store_fixture: &StoreFixture) {
    let held = store_fixture.expect_granted(0, &store_fixture.call()).await;
    expect_revoked(store_fixture, 0, &revoke_command(&held, 14_000)).await;
    assert_eq!(renewed_ttl_ms(store_fixture, &held).await, TTL_MS);
    store_fixture.advance_ms(6_000).await;
    assert_remaining(renewed_ttl_ms(store_fixture, &held).await, 8_000);
    store_fixture.advance_ms(8_000).await;
    assert_eq!(store_fixture.renew(0, &held).await, revoked_renewal());
    store_fixture.expect_held(0, &store_fixture.call()).await;
}

pub async fn the_earliest_end_of_several_revocations_counts(store_fixture: &StoreFixture) {
    let held = store_fixture.expect_granted(0, &store_fixture.call()).await;
    expect_revoked(store_fixture, 0, &revoke_command(&held, 6_000)).await;
    expect_revoked(store_fixture, 1, &revoke_command(&held, 60_000)).await;
    assert_remaining(renewed_ttl_ms(store_fixture, &held).await, 6_000);
    expect_revoked(store_fixture, 1, &revoke_command(&held, 3_000)).await;
    assert_remaining(renewed_ttl_ms(store_fixture, &held).await, 3_000);
}

pub async fn a_revocation_later_than_max_hold_changes_no_end(store_fixture: &StoreFixture) {
    let held = store_fixture
        .expect_granted(0, &with_hold_and_delay(store_fixture.call(), 5_000, 0))
        .await;
    expect_revoked(store_fixture, 0, &revoke_command(&held, 9_000)).await;
    assert_remaining(renewed_ttl_ms(store_fixture, &held).await, 5_000);
    store_fixture.advance_ms(5_000).await;
    assert_eq!(store_fixture.renew(0, &held).await, revoked_renewal());
}

pub async fn an_unsafe_revocation_frees_the_lock_now(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    expect_revoked(store_fixture, 1, &unsafe_revoke_command(&held)).await;
    let next = store_fixture.expect_granted(0, &store_fixture.call()).await;
    assert!(next.fencing_token > held.fencing_token);
    assert_eq!(store_fixture.renew(0, &held).await, revoked_renewal());
    // The order matters: a slow server could execute the release first, and then report the lease
    // as released.
    assert_eq!(
        send_revoke(store_fixture, 1, &unsafe_revoke_command(&held)).await,
        Ok(Revoked::Already)
    );
    assert_eq!(store_fixture.release(0, &held).await, revoked_release());
    store_fixture.expect_renewed(0, &next).await;
}

pub async fn an_unsafe_revocation_hands_the_lock_on(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let (first, second) = (store_fixture.waiting_call(), store_fixture.waiting_call());
    store_fixture.expect_queued(1, &first).await;
    store_fixture.expect_queued(0, &second).await;
    assert_eq!(
        expect_revoked(store_fixture, 2, &unsafe_revoke_command(&held)).await,
        2
    );
    let lease = store_fixture.claim_next_hand_off(1, &first).await;
    assert_eq!(store_fixture.expect_state().await.queue_length, 1);
    store_fixture.expect_renewed(1, &lease).await;
}

pub async fn a_revocation_that_is_only_asked_for_changes_nothing(store_fixture: &StoreFixture) {
    let held = store_fixture.expect_granted(0, &store_fixture.call()).await;
    let before = store_fixture.expect_state().await;
    let look = RevokeCommand {
        mode: RevokeMode::DryRun,
        lock_delay_ms: Some(DELAY_MS),
        ..revoke_command(&held, 0)
    };
    expect_revoked(store_fixture, 1, &look).await;
    let after = store_fixture.expect_state().await;
    assert_eq!(after.holder_count, before.holder_count);
    store_fixture.expect_renewed(0, &held).await;
    store_fixture.expect_released(0, &held).await;
    store_fixture.acquire_long(0).await;
}

pub async fn a_revocation_hits_no_other_lease(store_fixture: &StoreFixture) {
    let released = store_fixture.acquire_long(0).await;
    store_fixture.expect_released(0, &released).await;
    let expired = store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    let unknown = lease_of(&store_fixture.call(), expired.fencing_token);
    let held = store_fixture.acquire_long(0).await;
    for (ended, reply) in [
        (&released, Err(LeaseRejection::Released)),
        (&expired, Err(LeaseRejection::Expired)),
        (&unknown, Err(LeaseRejection::NotFound)),
    ] {
        for call in [revoke_command(ended, 0), unsafe_revoke_command(ended)] {
            assert_eq!(send_revoke(store_fixture, 1, &call).await, reply);
        }
    }
    store_fixture.expect_renewed(0, &held).await;
}

pub async fn a_revoked_lease_is_remembered_for_a_minute(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    expect_revoked(store_fixture, 0, &unsafe_revoke_command(&held)).await;
    store_fixture.advance_ms(EXPIRED_MS - 2 * SLACK_MS).await;
    assert_eq!(store_fixture.renew(0, &held).await, revoked_renewal());
    store_fixture.advance_ms(3 * SLACK_MS).await;
    assert_eq!(
        store_fixture.renew(0, &held).await,
        Err(LeaseRejection::NotFound)
    );
}

pub async fn a_lock_delay_of_a_revocation_closes_the_lock_however_it_ends(
    store_fixture: &StoreFixture,
) {
    let closing = |call: RevokeCommand| RevokeCommand {
        lock_delay_ms: Some(DELAY_MS),
        ..call
    };
    for unsafe_now in [false, true] {
        let held = store_fixture.acquire_long(0).await;
        match unsafe_now {
            true => assert_eq!(
                expect_revoked(store_fixture, 0, &closing(unsafe_revoke_command(&held))).await,
                0
            ),
            false => {
                expect_revoked(store_fixture, 0, &closing(revoke_command(&held, 0))).await;
                store_fixture.expect_released(0, &held).await;
            }
        }
        let contention = store_fixture.expect_held(0, &store_fixture.call()).await;
        assert_eq!(contention.holders, []);
        assert_remaining(contention.closed_ms(), DELAY_MS);
        store_fixture.advance_ms(DELAY_MS).await;
    }
    let held = store_fixture.expect_granted(0, &store_fixture.call()).await;
    expect_revoked(store_fixture, 0, &closing(revoke_command(&held, 0))).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    assert_remaining(
        store_fixture
            .expect_held(0, &store_fixture.call())
            .await
            .closed_ms(),
        DELAY_MS,
    );
}

pub async fn the_lock_delay_of_the_lease_closes_the_lock_only_if_it_runs_out(
    store_fixture: &StoreFixture,
) {
    let delayed = || with_hold_and_delay(store_fixture.call(), 0, DELAY_MS);
    let held = store_fixture.expect_granted(0, &delayed()).await;
    expect_revoked(store_fixture, 0, &revoke_command(&held, 0)).await;
    store_fixture.expect_released(0, &held).await;
    let held = store_fixture.expect_granted(0, &delayed()).await;
    expect_revoked(store_fixture, 0, &unsafe_revoke_command(&held)).await;
    assert_remaining(
        store_fixture
            .expect_held(0, &store_fixture.call())
            .await
            .closed_ms(),
        DELAY_MS,
    );
}

fn attachment_to(store_fixture: &StoreFixture, n: usize) -> Attachment {
    Attachment {
        stream: StreamId {
            broker: store_fixture.broker(n),
            epoch: 7,
        },
        number: 1,
    }
}

pub async fn the_stream_of_a_revoked_lease_is_notified(store_fixture: &StoreFixture) {
    let mut call = store_fixture.call();
    call.stream = Some(attachment_to(store_fixture, 0));
    let held = store_fixture.expect_granted(0, &call).await;
    for (n, grace_ms) in [(1, 5_000), (0, 0)] {
        expect_revoked(store_fixture, n, &revoke_command(&held, grace_ms)).await;
        let revocation = store_fixture.wait_for_revocation(0, grace_ms).await;
        assert_eq!(revocation.lease_id, held.lease_id);
        assert_eq!(
            (revocation.attachment, revocation.reason.as_str()),
            (attachment_to(store_fixture, 0), REASON)
        );
    }
    store_fixture.advance_ms(10).await;
    let via = ExpectedAttachment::Stream(attachment_to(store_fixture, 0).stream);
    let store = store_fixture.store(0);
    let renewed = store.renew(&held, Renewal::undelivered(via)).await;
    assert_eq!(renewed, Ok(revoked_renewal()));
}

pub async fn a_revoked_lease_is_put_on_no_stream(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let attach = async || {
        store_fixture
            .store(1)
            .attach(&held, attachment_to(store_fixture, 1))
            .await
    };
    expect_revoked(store_fixture, 0, &revoke_command(&held, 5_000)).await;
    let attached = attach().await;
    assert!(matches!(attached, Ok(Ok(_))), "in its grace: {attached:?}");
    expect_revoked(store_fixture, 0, &revoke_command(&held, 0)).await;
    store_fixture.advance_ms(10).await;
    let reason = REASON.to_owned();
    assert_eq!(attach().await, Ok(Err(LeaseRejection::Revoked { reason })));
}

pub async fn entering_a_revoked_lease_is_refused(store_fixture: &StoreFixture) {
    let call = store_fixture.call();
    let held = store_fixture.expect_granted(0, &call).await;
    expect_revoked(store_fixture, 0, &revoke_command(&held, 5_000)).await;
    assert_eq!(
        store_fixture
            .expect_reentered(0, &store_fixture.reentry_call(&held))
            .await,
        2
    );
    expect_revoked(store_fixture, 0, &revoke_command(&held, 0)).await;
    store_fixture.advance_ms(10).await;
    assert_eq!(
        store_fixture
            .acquire(0, &store_fixture.reentry_call(&held))
            .await,
        Acquired::Ended
    );
    assert_eq!(
        store_fixture.acquire(0, &new_attempt(&call)).await,
        Acquired::Ended
    );
}

pub async fn a_revocation_takes_one_of_several_holders(store_fixture: &StoreFixture) {
    let reader = || with_mode(store_fixture.call(), Mode::Shared);
    let mut readers = Vec::new();
    for n in 0..3 {
        readers.push(store_fixture.expect_granted(n, &reader()).await);
    }
    let writer = store_fixture.waiting_call();
    store_fixture.expect_queued(3, &writer).await;
    expect_revoked(store_fixture, 0, &unsafe_revoke_command(&readers[1])).await;
    assert_eq!(store_fixture.renew(1, &readers[1]).await, revoked_renewal());
    for n in [0, 2] {
        store_fixture.expect_renewed(n, &readers[n]).await;
        assert_eq!(store_fixture.expect_state().await.queue_length, 1);
        expect_revoked(store_fixture, 1, &unsafe_revoke_command(&readers[n])).await;
    }
    store_fixture.claim_next_hand_off(3, &writer).await;
}

/// One lease has two requests in the queue of one lock, and holds the lock twice in succession.
pub async fn a_revocation_forgets_no_earlier_end(store_fixture: &StoreFixture) {
    let before = store_fixture.acquire_long(0).await;
    let first = AcquireCommand {
        binding: LeaseBinding::Existing,
        ..store_fixture.waiting_call()
    };
    let second = AcquireCommand {
        lease_id: first.lease_id,
        binding: LeaseBinding::Existing,
        ..store_fixture.waiting_call()
    };
    store_fixture.expect_queued(0, &first).await;
    store_fixture.expect_queued(0, &second).await;
    store_fixture.expect_released(0, &before).await;
    store_fixture
        .advance_with_touches(expiry_ms(TTL_MS) + 1_500, &[0])
        .await;
    let held = store_fixture.expect_granted(0, &new_attempt(&second)).await;
    expect_revoked(store_fixture, 0, &revoke_command(&held, 0)).await;
    store_fixture.expect_released(0, &held).await;
    for _ in 0..RELEASED_MAX {
        let other = store_fixture.acquire_long(0).await;
        store_fixture.expect_released(0, &other).await;
    }
    store_fixture.advance_ms(TOMBSTONE_MS).await;
    assert_eq!(
        store_fixture.release(0, &held).await,
        Err(LeaseRejection::Expired)
    );
}

pub async fn an_unclaimed_hand_off_cannot_be_revoked(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &waiter).await;
    store_fixture.expect_released(0, &held).await;
    let hand_off = store_fixture.next_hand_off(1, &waiter).await;
    let next = lease_of(&waiter, hand_off.fencing_token);
    assert_eq!(
        send_revoke(store_fixture, 0, &unsafe_revoke_command(&next)).await,
        Err(LeaseRejection::NotFound)
    );
    store_fixture.advance_ms(PROVISIONAL_GRANT_MS / 2).await;
    store_fixture.expect_renewed(1, &next).await;
    expect_revoked(store_fixture, 0, &unsafe_revoke_command(&next)).await;
}
