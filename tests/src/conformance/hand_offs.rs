//! From one holder to the next: final within a broker, provisional until claimed between brokers.

use leasehold_server::{
    lock::{CLAIM_MS, Ttl, Via, expiry_ms},
    store::{Acquired, Cancelled, Released, Renewed},
};

use crate::world::{SLACK_MS, TTL_MS, World, again, assert_left, lease, only, with_ttl};

pub async fn a_hand_off_within_a_broker_is_final(world: &World) {
    let held = world.held_by(0).await;
    let waiter = world.waiting();
    world.queued(0, &waiter).await;
    world.release(0, &held).await;
    assert!(!world.hand_off(0, &waiter).await.provisional);
    let state = world.state().await;
    assert_eq!(state.queue_length, 0);
    assert_left(
        only(state.holders).expect("held").remaining_ms,
        expiry_ms(TTL_MS),
    );
}

pub async fn who_joins_the_line_knows_which_hand_offs_were_before(world: &World) {
    let first = world.held_by(0).await;
    let waiter = world.waiting();
    world.queued(0, &waiter).await;
    world.release(0, &first).await;
    let taken_back = world.hand_off(0, &waiter).await.fencing_token;
    assert_eq!(world.cancel(0, &waiter).await, Cancelled::Freed);
    let second = world.held_by(0).await;
    let reply = world.acquire(0, &again(&waiter)).await;
    let Acquired::Queued {
        last_fencing_token, ..
    } = reply
    else {
        panic!("{reply:?} instead of a place in line");
    };
    assert!(taken_back < second.fencing_token);
    assert_eq!(last_fencing_token, second.fencing_token.get());
    world.release(0, &second).await;
    let now = world.hand_off(0, &waiter).await.fencing_token;
    assert!(now.get() > last_fencing_token);
}

pub async fn where_lines_know_no_tokens_every_hand_off_is_claimed(world: &World) {
    let held = world.held_by(0).await;
    let waiter = world.waiting();
    let reply = world.acquire(0, &waiter).await;
    let Acquired::Queued {
        last_fencing_token, ..
    } = reply
    else {
        panic!("{reply:?} instead of a place in line");
    };
    assert_eq!(last_fencing_token, 0);
    world.release(0, &held).await;
    let hand_off = world.hand_off(0, &waiter).await;
    assert!(hand_off.provisional);
    assert_eq!(world.cancel(0, &waiter).await, Cancelled::Freed);
    let taken_back = lease(&waiter, hand_off.fencing_token);
    assert_eq!(world.renew(0, &taken_back).await, Renewed::NotFound);
}

pub async fn a_hand_off_to_another_broker_is_provisional(world: &World) {
    let held = world.held_by(0).await;
    let waiter = world.waiting();
    world.queued(1, &waiter).await;
    world.release(0, &held).await;
    assert!(world.hand_off(1, &waiter).await.provisional);
    let state = world.state().await;
    assert_eq!((only(state.holders), state.queue_length), (None, 1));
}

pub async fn a_claim_makes_a_hand_off_final(world: &World) {
    let held = world.held_by(0).await;
    let waiter = world.waiting();
    world.queued(1, &waiter).await;
    world.release(0, &held).await;
    let lease = world.handed(1, &waiter).await;
    let state = world.state().await;
    let holder = only(state.holders).expect("claimed");
    assert_eq!(holder.fencing_token, lease.fencing_token);
    assert_left(holder.remaining_ms, expiry_ms(TTL_MS));
    assert_eq!(state.queue_length, 0);
    world.advance_ms(CLAIM_MS + SLACK_MS).await;
    world.renewed(1, &lease).await;
}

pub async fn a_repeat_of_the_call_claims_the_hand_off(world: &World) {
    let held = world.held_by(0).await;
    let waiter = world.waiting();
    world.queued(1, &waiter).await;
    world.release(0, &held).await;
    let claimed = world.granted(2, &again(&waiter)).await;
    world.advance_ms(CLAIM_MS + SLACK_MS).await;
    world.renewed(2, &claimed).await;
}

pub async fn an_unclaimed_hand_off_lapses_after_three_seconds(world: &World) {
    let held = world.held_by(0).await;
    let (silent, next) = (world.waiting(), world.waiting());
    world.queued(1, &silent).await;
    world.queued(2, &next).await;
    world.release(0, &held).await;
    world.advance_ms(CLAIM_MS - SLACK_MS).await;
    assert_eq!(only(world.touch(2).await.held), None);
    world.advance_ms(SLACK_MS).await;
    let told = only(world.touch(2).await.held).expect("passed on to the next");
    assert_eq!(told.request, next.request);
    assert!(!told.provisional);
}

pub async fn a_hand_off_with_a_short_ttl_lapses_with_it(world: &World) {
    let held = world.held_by(0).await;
    let short = with_ttl(world.waiting(), 1_000);
    world.queued(1, &short).await;
    world.release(0, &held).await;
    let told = world.hand_off(1, &short).await;
    world.advance_ms(expiry_ms(1_000)).await;
    let late = lease(&short, told.fencing_token);
    assert_eq!(world.renew(1, &late).await, Renewed::NotFound);
}

pub async fn an_unclaimed_waiter_keeps_its_place_and_is_passed_over(world: &World) {
    let held = world.held_by(0).await;
    let (first, second, third) = (world.waiting(), world.waiting(), world.waiting());
    world.queued(1, &first).await;
    world.queued(2, &second).await;
    world.queued(2, &third).await;
    world.release(0, &held).await;
    world.hand_off(1, &first).await;
    world.advance_ms(CLAIM_MS).await;
    world.touch(2).await;
    let state = world.state().await;
    assert_eq!(only(state.holders).expect("the second").owner, second.owner);
    let owners: Vec<_> = state
        .waiters
        .into_iter()
        .map(|waiting| waiting.owner)
        .collect();
    assert_eq!(owners, [first.owner, third.owner]);
}

pub async fn an_unclaimed_waiter_is_granted_again_once_its_broker_touches(world: &World) {
    let held = world.held_by(0).await;
    let (first, second) = (world.waiting(), world.waiting());
    world.queued(1, &first).await;
    world.queued(2, &second).await;
    world.release(0, &held).await;
    let burnt = world.hand_off(1, &first).await;
    world.advance_ms(CLAIM_MS).await;
    let told = only(world.touch(2).await.held).expect("the second");
    world.touch(1).await;
    world.release(2, &lease(&second, told.fencing_token)).await;
    let lease = world.handed(1, &first).await;
    assert!(lease.fencing_token > burnt.fencing_token);
}

pub async fn an_unclaimed_waiter_is_granted_again_once_its_call_is_repeated(world: &World) {
    let held = world.held_by(0).await;
    let (first, second) = (world.waiting(), world.waiting());
    world.queued(1, &first).await;
    world.queued(2, &second).await;
    world.release(0, &held).await;
    world.advance_ms(CLAIM_MS).await;
    world.granted(3, &again(&first)).await;
    assert_eq!(world.state().await.queue_length, 1);
}

pub async fn an_unclaimed_hand_off_is_no_ended_lease(world: &World) {
    let held = world.held_by(0).await;
    let waiter = world.waiting();
    world.queued(1, &waiter).await;
    world.release(0, &held).await;
    let burnt = lease(&waiter, world.hand_off(1, &waiter).await.fencing_token);
    world.advance_ms(CLAIM_MS).await;
    assert_eq!(world.renew(1, &burnt).await, Renewed::NotFound);
    assert_eq!(world.release(1, &burnt).await, Released::NotFound);
    world.granted(1, &again(&waiter)).await;
    assert_eq!(world.renew(1, &burnt).await, Renewed::NotFound);
}

pub async fn a_claim_may_name_another_ttl(world: &World) {
    let held = world.held_by(0).await;
    let waiter = world.waiting();
    world.queued(1, &waiter).await;
    world.release(0, &held).await;
    let told = lease(&waiter, world.hand_off(1, &waiter).await.fencing_token);
    let reply = world
        .store(1)
        .renew(&told, Some(Ttl::from_stored(20_000)), Via::Anywhere);
    assert!(matches!(reply.await, Ok(Renewed::Extended(_))));
    let holder = only(world.state().await.holders).expect("claimed");
    assert_left(holder.remaining_ms, expiry_ms(20_000));
}

pub async fn cancelling_a_provisional_hand_off_hands_the_lock_on(world: &World) {
    let held = world.held_by(0).await;
    let (first, second) = (world.waiting(), world.waiting());
    world.queued(1, &first).await;
    world.queued(2, &second).await;
    world.release(0, &held).await;
    world.hand_off(1, &first).await;
    assert_eq!(world.cancel(1, &first).await, Cancelled::Freed);
    world.handed(2, &second).await;
    assert_eq!(world.state().await.queue_length, 0);
}

pub async fn releasing_a_provisional_hand_off_hands_the_lock_on(world: &World) {
    let held = world.held_by(0).await;
    let (first, second) = (world.waiting(), world.waiting());
    world.queued(1, &first).await;
    world.queued(2, &second).await;
    world.release(0, &held).await;
    let told = world.hand_off(1, &first).await;
    let given_back = lease(&first, told.fencing_token);
    assert_eq!(
        world.release(1, &given_back).await,
        Released::Now { hold_count: 0 }
    );
    world.handed(2, &second).await;
    assert_eq!(world.acquire(1, &again(&first)).await, Acquired::Ended);
}

pub async fn a_touch_tells_of_a_final_grant_that_was_missed(world: &World) {
    let held = world.held_by(0).await;
    let waiter = world.waiting();
    world.queued(1, &waiter).await;
    world.release(1, &held).await;
    let told = only(world.touch(1).await.held).expect("the grant");
    assert_eq!(
        (told.request, told.broker),
        (waiter.request, world.broker(1))
    );
    assert!(!told.provisional);
    assert_eq!(only(world.touch(0).await.held), None);
}

pub async fn a_touch_tells_of_a_provisional_grant_that_was_missed(world: &World) {
    let held = world.held_by(0).await;
    let waiter = world.waiting();
    world.queued(1, &waiter).await;
    world.release(0, &held).await;
    let told = only(world.touch(1).await.held).expect("the grant");
    assert!(told.provisional);
    world.renewed(1, &lease(&waiter, told.fencing_token)).await;
    assert!(
        !only(world.touch(1).await.held)
            .expect("the lease")
            .provisional
    );
}

pub async fn a_touch_grants_a_lock_that_became_free(world: &World) {
    world.granted(0, &world.call()).await;
    let waiter = world.waiting();
    world.queued(1, &waiter).await;
    assert_eq!(only(world.touch(1).await.held), None);
    world.advance_ms(expiry_ms(TTL_MS)).await;
    let told = only(world.touch(1).await.held).expect("granted by the touch");
    assert_eq!(told.request, waiter.request);
    assert!(!told.provisional);
}

pub async fn a_touch_tells_when_to_touch_again(world: &World) {
    assert_eq!(world.touch(1).await.next_event_ms, 0);
    world.granted(0, &world.call()).await;
    assert_left(world.touch(1).await.next_event_ms, expiry_ms(TTL_MS));
}
