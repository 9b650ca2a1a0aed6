//! Hand-offs between holders: final within a broker, provisional until claimed between brokers.

use leasehold_server::{
    lock::{PROVISIONAL_GRANT_MS, Ttl, expiry_ms},
    store::{Acquired, Cancelled, LeaseRejection, Renewal},
};

use crate::store_fixture::{
    SLACK_MS, StoreFixture, TTL_MS, assert_remaining, at_most_one, lease_of, new_attempt,
    released_now, with_ttl,
};

pub async fn a_hand_off_within_a_broker_is_final(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(0, &waiter).await;
    store_fixture.expect_released(0, &held).await;
    assert!(!store_fixture.next_hand_off(0, &waiter).await.is_provisional);
    let state = store_fixture.expect_state().await;
    assert_eq!(state.queue_length, 0);
    assert_remaining(
        at_most_one(state.holders).expect("held").remaining_ms,
        expiry_ms(TTL_MS),
    );
}

pub async fn a_new_waiter_receives_the_last_token_before_it_was_queued(
    store_fixture: &StoreFixture,
) {
    let first = store_fixture.acquire_long(0).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(0, &waiter).await;
    store_fixture.expect_released(0, &first).await;
    let taken_back = store_fixture.next_hand_off(0, &waiter).await.fencing_token;
    assert_eq!(store_fixture.cancel(0, &waiter).await, Cancelled::Freed);
    let second = store_fixture.acquire_long(0).await;
    let reply = store_fixture.acquire(0, &new_attempt(&waiter)).await;
    let Acquired::Queued {
        last_fencing_token, ..
    } = reply
    else {
        panic!("{reply:?} instead of a queue position");
    };
    assert!(taken_back < second.fencing_token);
    assert_eq!(last_fencing_token, second.fencing_token.get());
    store_fixture.expect_released(0, &second).await;
    let now = store_fixture.next_hand_off(0, &waiter).await.fencing_token;
    assert!(now.get() > last_fencing_token);
}

pub async fn without_tokens_in_the_queue_every_hand_off_is_claimed(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let waiter = store_fixture.waiting_call();
    let reply = store_fixture.acquire(0, &waiter).await;
    let Acquired::Queued {
        last_fencing_token, ..
    } = reply
    else {
        panic!("{reply:?} instead of a queue position");
    };
    assert_eq!(last_fencing_token, 0);
    store_fixture.expect_released(0, &held).await;
    let hand_off = store_fixture.next_hand_off(0, &waiter).await;
    assert!(hand_off.is_provisional);
    assert_eq!(store_fixture.cancel(0, &waiter).await, Cancelled::Freed);
    let taken_back = lease_of(&waiter, hand_off.fencing_token);
    assert_eq!(
        store_fixture.renew(0, &taken_back).await,
        Err(LeaseRejection::NotFound)
    );
}

pub async fn a_hand_off_to_another_broker_is_provisional(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &waiter).await;
    store_fixture.expect_released(0, &held).await;
    assert!(store_fixture.next_hand_off(1, &waiter).await.is_provisional);
    let state = store_fixture.expect_state().await;
    assert_eq!((at_most_one(state.holders), state.queue_length), (None, 1));
}

pub async fn a_claim_makes_a_hand_off_final(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &waiter).await;
    store_fixture.expect_released(0, &held).await;
    let lease = store_fixture.claim_next_hand_off(1, &waiter).await;
    let state = store_fixture.expect_state().await;
    let holder = at_most_one(state.holders).expect("claimed");
    assert_eq!(holder.fencing_token, lease.fencing_token);
    assert_remaining(holder.remaining_ms, expiry_ms(TTL_MS));
    assert_eq!(state.queue_length, 0);
    store_fixture
        .advance_ms(PROVISIONAL_GRANT_MS + SLACK_MS)
        .await;
    store_fixture.expect_renewed(1, &lease).await;
}

pub async fn a_repeat_of_the_call_claims_the_hand_off(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &waiter).await;
    store_fixture.expect_released(0, &held).await;
    let claimed = store_fixture.expect_granted(2, &new_attempt(&waiter)).await;
    store_fixture
        .advance_ms(PROVISIONAL_GRANT_MS + SLACK_MS)
        .await;
    store_fixture.expect_renewed(2, &claimed).await;
}

pub async fn an_unclaimed_hand_off_lapses_after_three_seconds(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let (silent, next) = (store_fixture.waiting_call(), store_fixture.waiting_call());
    store_fixture.expect_queued(1, &silent).await;
    store_fixture.expect_queued(2, &next).await;
    store_fixture.expect_released(0, &held).await;
    store_fixture
        .advance_ms(PROVISIONAL_GRANT_MS - SLACK_MS)
        .await;
    assert_eq!(at_most_one(store_fixture.touch(2).await.held), None);
    store_fixture.advance_ms(SLACK_MS).await;
    let grant = at_most_one(store_fixture.touch(2).await.held).expect("passed on to the next");
    assert_eq!(grant.request, next.request);
    assert!(!grant.is_provisional);
}

pub async fn a_hand_off_with_a_short_ttl_lapses_with_it(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let short = with_ttl(store_fixture.waiting_call(), 1_000);
    store_fixture.expect_queued(1, &short).await;
    store_fixture.expect_released(0, &held).await;
    let grant = store_fixture.next_hand_off(1, &short).await;
    store_fixture.advance_ms(expiry_ms(1_000)).await;
    let late = lease_of(&short, grant.fencing_token);
    assert_eq!(
        store_fixture.renew(1, &late).await,
        Err(LeaseRejection::NotFound)
    );
}

pub async fn an_unclaimed_waiter_keeps_its_place_and_is_passed_over(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let (first, second, third) = (
        store_fixture.waiting_call(),
        store_fixture.waiting_call(),
        store_fixture.waiting_call(),
    );
    store_fixture.expect_queued(1, &first).await;
    store_fixture.expect_queued(2, &second).await;
    store_fixture.expect_queued(2, &third).await;
    store_fixture.expect_released(0, &held).await;
    store_fixture.next_hand_off(1, &first).await;
    store_fixture.advance_ms(PROVISIONAL_GRANT_MS).await;
    store_fixture.touch(2).await;
    let state = store_fixture.expect_state().await;
    assert_eq!(
        at_most_one(state.holders).expect("the second").owner,
        second.owner
    );
    let owners: Vec<_> = state
        .waiters
        .into_iter()
        .map(|waiting| waiting.owner)
        .collect();
    assert_eq!(owners, [first.owner, third.owner]);
}

pub async fn an_unclaimed_waiter_is_granted_again_once_its_broker_touches(
    store_fixture: &StoreFixture,
) {
    let held = store_fixture.acquire_long(0).await;
    let (first, second) = (store_fixture.waiting_call(), store_fixture.waiting_call());
    store_fixture.expect_queued(1, &first).await;
    store_fixture.expect_queued(2, &second).await;
    store_fixture.expect_released(0, &held).await;
    let burnt = store_fixture.next_hand_off(1, &first).await;
    store_fixture.advance_ms(PROVISIONAL_GRANT_MS).await;
    let grant = at_most_one(store_fixture.touch(2).await.held).expect("the second");
    store_fixture.touch(1).await;
    store_fixture
        .expect_released(2, &lease_of(&second, grant.fencing_token))
        .await;
    let lease = store_fixture.claim_next_hand_off(1, &first).await;
    assert!(lease.fencing_token > burnt.fencing_token);
}

pub async fn an_unclaimed_waiter_is_granted_again_once_its_call_is_repeated(
    store_fixture: &StoreFixture,
) {
    let held = store_fixture.acquire_long(0).await;
    let (first, second) = (store_fixture.waiting_call(), store_fixture.waiting_call());
    store_fixture.expect_queued(1, &first).await;
    store_fixture.expect_queued(2, &second).await;
    store_fixture.expect_released(0, &held).await;
    store_fixture.advance_ms(PROVISIONAL_GRANT_MS).await;
    store_fixture.expect_granted(3, &new_attempt(&first)).await;
    assert_eq!(store_fixture.expect_state().await.queue_length, 1);
}

pub async fn an_unclaimed_hand_off_is_no_ended_lease(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &waiter).await;
    store_fixture.expect_released(0, &held).await;
    let burnt = lease_of(
        &waiter,
        store_fixture.next_hand_off(1, &waiter).await.fencing_token,
    );
    store_fixture.advance_ms(PROVISIONAL_GRANT_MS).await;
    assert_eq!(
        store_fixture.renew(1, &burnt).await,
        Err(LeaseRejection::NotFound)
    );
    assert_eq!(
        store_fixture.release(1, &burnt).await,
        Err(LeaseRejection::NotFound)
    );
    store_fixture.expect_granted(1, &new_attempt(&waiter)).await;
    assert_eq!(
        store_fixture.renew(1, &burnt).await,
        Err(LeaseRejection::NotFound)
    );
}

pub async fn a_claim_may_name_another_ttl(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &waiter).await;
    store_fixture.expect_released(0, &held).await;
    let grant = lease_of(
        &waiter,
        store_fixture.next_hand_off(1, &waiter).await.fencing_token,
    );
    let renewal = Renewal {
        ttl: Some(Ttl::from_stored(20_000)),
        ..Renewal::default()
    };
    let reply = store_fixture.store(1).renew(&grant, renewal);
    assert!(matches!(reply.await, Ok(Ok(_))));
    let holder = at_most_one(store_fixture.expect_state().await.holders).expect("claimed");
    assert_remaining(holder.remaining_ms, expiry_ms(20_000));
}

pub async fn cancelling_a_provisional_hand_off_hands_the_lock_on(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let (first, second) = (store_fixture.waiting_call(), store_fixture.waiting_call());
    store_fixture.expect_queued(1, &first).await;
    store_fixture.expect_queued(2, &second).await;
    store_fixture.expect_released(0, &held).await;
    store_fixture.next_hand_off(1, &first).await;
    assert_eq!(store_fixture.cancel(1, &first).await, Cancelled::Freed);
    store_fixture.claim_next_hand_off(2, &second).await;
    assert_eq!(store_fixture.expect_state().await.queue_length, 0);
}

pub async fn releasing_a_provisional_hand_off_hands_the_lock_on(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let (first, second) = (store_fixture.waiting_call(), store_fixture.waiting_call());
    store_fixture.expect_queued(1, &first).await;
    store_fixture.expect_queued(2, &second).await;
    store_fixture.expect_released(0, &held).await;
    let grant = store_fixture.next_hand_off(1, &first).await;
    let released_lease = lease_of(&first, grant.fencing_token);
    assert_eq!(
        store_fixture.release(1, &released_lease).await,
        released_now(0)
    );
    store_fixture.claim_next_hand_off(2, &second).await;
    assert_eq!(
        store_fixture.acquire(1, &new_attempt(&first)).await,
        Acquired::Ended
    );
}

pub async fn a_touch_returns_a_missed_final_grant(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &waiter).await;
    store_fixture.expect_released(1, &held).await;
    let grant = at_most_one(store_fixture.touch(1).await.held).expect("the grant");
    assert_eq!(
        (grant.request, grant.broker),
        (waiter.request, store_fixture.broker(1))
    );
    assert!(!grant.is_provisional);
    assert_eq!(at_most_one(store_fixture.touch(0).await.held), None);
}

pub async fn a_touch_returns_a_missed_provisional_grant(store_fixture: &StoreFixture) {
    let held = store_fixture.acquire_long(0).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &waiter).await;
    store_fixture.expect_released(0, &held).await;
    let grant = at_most_one(store_fixture.touch(1).await.held).expect("the grant");
    assert!(grant.is_provisional);
    store_fixture
        .expect_renewed(1, &lease_of(&waiter, grant.fencing_token))
        .await;
    assert!(
        !at_most_one(store_fixture.touch(1).await.held)
            .expect("the lease")
            .is_provisional
    );
}

pub async fn a_touch_grants_a_lock_that_became_free(store_fixture: &StoreFixture) {
    store_fixture.expect_granted(0, &store_fixture.call()).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &waiter).await;
    assert_eq!(at_most_one(store_fixture.touch(1).await.held), None);
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    let grant = at_most_one(store_fixture.touch(1).await.held).expect("granted by the touch");
    assert_eq!(grant.request, waiter.request);
    assert!(!grant.is_provisional);
}

pub async fn a_touch_returns_the_time_of_the_next_touch(store_fixture: &StoreFixture) {
    assert_eq!(store_fixture.touch(1).await.next_event_ms, None);
    store_fixture.expect_granted(0, &store_fixture.call()).await;
    let next_event_ms = store_fixture.touch(1).await.next_event_ms;
    assert_remaining(
        next_event_ms.expect("the expiry of the lease"),
        expiry_ms(TTL_MS),
    );
}
