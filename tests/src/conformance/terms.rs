//! What a call asks for besides the ttl: the longest hold, and a closed lock after an expiry.

use leasehold_server::{
    lock::{Acquire, CLAIM_MS, Mode, expiry_ms},
    store::{Acquired, Cancelled, Released, Renewed},
};

use crate::world::{
    SLACK_MS, TTL_MS, World, again, assert_left, lease, only, with_mode, with_terms, with_ttl,
};

const DELAY_MS: u64 = 8_000;

fn delayed(call: Acquire) -> Acquire {
    with_terms(call, 0, DELAY_MS)
}

/// For how long the lock is closed to a call that does not wait.
async fn closed_ms(world: &World) -> u64 {
    let contention = world.refused(0, &world.call()).await;
    assert_eq!(contention.holders, []);
    contention.closed_ms
}

async fn granted_ttl_ms(world: &World, call: &Acquire) -> u64 {
    let reply = world.acquire(0, call).await;
    let Acquired::Granted(grant) = reply else {
        panic!("{reply:?} instead of a grant");
    };
    grant.ttl.as_millis()
}

pub async fn max_hold_cuts_the_first_validity(world: &World) {
    let call = with_terms(world.call(), 4_000, 0);
    assert_eq!(granted_ttl_ms(world, &call).await, 4_000);
    let holder = only(world.state().await.holders).expect("held");
    assert_left(holder.remaining_ms, expiry_ms(4_000));
}

pub async fn max_hold_cuts_every_renewal(world: &World) {
    let held = world.granted(0, &with_terms(world.call(), 14_000, 0)).await;
    let mut validities = Vec::new();
    for _ in 0..3 {
        world.advance_ms(3_000).await;
        let reply = world.renew(0, &held).await;
        let Renewed::Extended(grant) = reply else {
            panic!("{reply:?} instead of a renewal");
        };
        validities.push(grant.ttl.as_millis());
    }
    assert_eq!(validities[0], TTL_MS);
    assert_left(validities[1], 8_000);
    assert_left(validities[2], 5_000);
}

pub async fn a_renewal_past_max_hold_is_refused(world: &World) {
    let held = world.granted(0, &with_terms(world.call(), 5_000, 0)).await;
    let waiter = world.waiting();
    world.queued(0, &waiter).await;
    world.advance_ms(5_000).await;
    assert_eq!(world.renew(0, &held).await, Renewed::MaxHold);
    assert!(
        only(world.state().await.holders).is_some(),
        "until its expiry"
    );
    world.advance_ms(expiry_ms(5_000) - 5_000).await;
    assert_eq!(world.renew(0, &held).await, Renewed::Expired);
    let told = only(world.touch(0).await.held).expect("its turn");
    assert_eq!(told.request, waiter.request);
}

pub async fn a_lease_past_max_hold_can_be_released(world: &World) {
    let held = world.granted(0, &with_terms(world.call(), 5_000, 0)).await;
    world.advance_ms(5_000).await;
    assert_eq!(
        world.release(0, &held).await,
        Released::Now { hold_count: 0 }
    );
    world.held_by(0).await;
}

pub async fn max_hold_counts_from_the_grant(world: &World) {
    let first = world.held_by(0).await;
    let waiter = with_terms(world.waiting(), 6_000, 0);
    world.queued(0, &waiter).await;
    world.advance_ms(20_000).await;
    world.release(0, &first).await;
    let held = world.handed(0, &waiter).await;
    world.renewed(0, &held).await;
    let holder = only(world.state().await.holders).expect("held");
    assert_left(holder.remaining_ms, expiry_ms(6_000));
}

pub async fn a_repeat_past_max_hold_is_told_that_the_lease_is_over(world: &World) {
    let call = with_terms(world.call(), 5_000, 0);
    world.granted(0, &call).await;
    world.advance_ms(5_000).await;
    let reply = world.acquire(0, &again(&call)).await;
    assert_eq!(reply, Acquired::Ended);
}

pub async fn a_longer_ttl_does_not_pass_max_hold(world: &World) {
    let call = with_ttl(with_terms(world.call(), 7_000, 0), 60_000);
    assert_eq!(granted_ttl_ms(world, &call).await, 7_000);
    assert!(granted_ttl_ms(world, &again(&call)).await <= 7_000);
}

/// Automatic renewal with a cap: however often it is renewed, the lock is free after the cap.
pub async fn seed_automatic_renewal_ends_at_its_cap(world: &World) {
    let held = world.granted(0, &with_terms(world.call(), 30_000, 0)).await;
    let mut renewals = 0;
    while world.renew(0, &held).await != Renewed::MaxHold {
        renewals += 1;
        world.advance_ms(3_000).await;
    }
    assert_eq!(renewals, 10);
    world.advance_ms(expiry_ms(3_000)).await;
    world.granted(0, &world.call()).await;
}

pub async fn lock_delay_closes_a_lock_after_an_expiry(world: &World) {
    world.granted(0, &delayed(world.call())).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    assert_left(closed_ms(world).await, DELAY_MS);
    assert_left(world.state().await.closed_ms, DELAY_MS);
    world.advance_ms(DELAY_MS).await;
    world.granted(0, &world.call()).await;
    assert_eq!(world.state().await.closed_ms, 0);
}

pub async fn lock_delay_counts_from_the_expiry_whoever_notices(world: &World) {
    world.granted(0, &delayed(world.call())).await;
    world.advance_ms(expiry_ms(TTL_MS) + 5_000).await;
    assert_left(closed_ms(world).await, DELAY_MS - 5_000);
    world.advance_ms(DELAY_MS - 5_000).await;
    world.granted(0, &world.call()).await;
}

pub async fn lock_delay_does_not_follow_a_release(world: &World) {
    let held = world.granted(0, &delayed(world.call())).await;
    world.release(0, &held).await;
    world.granted(0, &world.call()).await;
}

pub async fn lock_delay_does_not_follow_a_cancelled_call(world: &World) {
    let call = delayed(world.call());
    world.granted(0, &call).await;
    assert_eq!(world.cancel(0, &call).await, Cancelled::Freed);
    world.granted(0, &world.call()).await;
}

pub async fn lock_delay_does_not_follow_an_unclaimed_hand_off(world: &World) {
    let held = world.held_by(0).await;
    let silent = delayed(world.waiting());
    let next = world.waiting();
    world.queued(1, &silent).await;
    world.queued(0, &next).await;
    world.release(0, &held).await;
    world.hand_off(1, &silent).await;
    world.advance_ms(CLAIM_MS).await;
    let told = only(world.touch(0).await.held).expect("the next at once");
    assert_eq!(told.request, next.request);
}

pub async fn lock_delay_keeps_waiters_waiting_and_says_how_long(world: &World) {
    world.granted(0, &delayed(world.call())).await;
    let waiter = world.waiting();
    world.queued(0, &waiter).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    let touched = world.touch(0).await;
    assert_eq!(touched.held, []);
    assert_left(touched.next_event_ms, DELAY_MS);
    world.advance_ms(touched.next_event_ms).await;
    let told = only(world.touch(0).await.held).expect("its turn");
    world.renewed(0, &lease(&waiter, told.fencing_token)).await;
}

pub async fn lock_delay_of_a_reader_closes_the_whole_lock(world: &World) {
    let reader = || with_mode(world.call(), Mode::Shared);
    world.granted(0, &delayed(reader())).await;
    let live = world.granted(0, &with_ttl(reader(), 60_000)).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    let contention = world.refused(0, &reader()).await;
    assert_left(contention.closed_ms, DELAY_MS);
    world.renewed(0, &live).await;
    world.advance_ms(DELAY_MS).await;
    world.granted(0, &reader()).await;
}

pub async fn the_longest_lock_delay_counts(world: &World) {
    let reader = || with_mode(world.call(), Mode::Shared);
    world.granted(0, &with_terms(reader(), 0, 2_000)).await;
    world.granted(0, &with_terms(reader(), 0, 9_000)).await;
    world.granted(0, &with_terms(reader(), 0, 4_000)).await;
    world.advance_ms(expiry_ms(TTL_MS) + SLACK_MS).await;
    let left_ms = closed_ms(world).await;
    assert!(
        (9_000 - 2 * SLACK_MS..9_000).contains(&left_ms),
        "{left_ms}"
    );
}
