//! A store that may have lost data: it grants nothing new until every lease that may have been lost
//! has expired. All other commands work. Each behaviour begins in [`InitialState::Recovering`].
//!
//! [`InitialState::Recovering`]: crate::store_fixture::InitialState::Recovering

use leasehold_server::{
    lock::{AcquireCommand, FencingToken},
    store::{Cancelled, LeaseRejection},
};

use crate::store_fixture::{
    SLACK_MS, StoreFixture, at_most_one, lease_of, new_attempt, recovering_ms,
};

pub async fn a_recovering_store_grants_nothing_and_says_for_how_long(store_fixture: &StoreFixture) {
    let refused = store_fixture.store(0).acquire(&store_fixture.call()).await;
    let left_ms = recovering_ms(refused);
    assert!(left_ms > 0 && left_ms <= store_fixture.quarantine_ms());
    let refused = store_fixture
        .store(0)
        .acquire(&store_fixture.waiting_call())
        .await;
    assert!(recovering_ms(refused) <= left_ms);
    assert_eq!(store_fixture.get().await, None);
}

pub async fn a_recovering_store_grants_after_the_quarantine(store_fixture: &StoreFixture) {
    store_fixture
        .advance_ms(store_fixture.quarantine_ms() - 2 * SLACK_MS)
        .await;
    let call = store_fixture.call();
    recovering_ms(store_fixture.store(0).acquire(&call).await);
    store_fixture.advance_ms(2 * SLACK_MS).await;
    store_fixture.expect_granted(0, &new_attempt(&call)).await;
}

pub async fn a_waiter_joins_a_recovering_store_again_and_is_granted_afterwards(
    store_fixture: &StoreFixture,
) {
    let waiters = [(); 2].map(|()| AcquireCommand {
        rejoin: true,
        ..store_fixture.waiting_call()
    });
    for (n, waiter) in waiters.iter().enumerate() {
        let next_event_ms = store_fixture.expect_queued(n, waiter).await;
        let quarantine_ms = store_fixture.quarantine_ms();
        assert!(next_event_ms.is_some_and(|next_event_ms| next_event_ms <= quarantine_ms));
    }
    assert_eq!(at_most_one(store_fixture.touch(1).await.held), None);
    store_fixture
        .advance_ms(store_fixture.quarantine_ms())
        .await;
    let grant =
        at_most_one(store_fixture.touch(0).await.held).expect("granted when the time is over");
    assert_eq!(grant.request, waiters[0].request);
    store_fixture
        .expect_released(0, &lease_of(&waiters[0], grant.fencing_token))
        .await;
    store_fixture.claim_next_hand_off(1, &waiters[1]).await;
}

pub async fn a_waiter_leaves_a_recovering_store(store_fixture: &StoreFixture) {
    let waiter = AcquireCommand {
        rejoin: true,
        ..store_fixture.waiting_call()
    };
    store_fixture.expect_queued(0, &waiter).await;
    assert_eq!(store_fixture.cancel(0, &waiter).await, Cancelled::Dequeued);
    store_fixture
        .advance_ms(store_fixture.quarantine_ms())
        .await;
    store_fixture.expect_granted(1, &store_fixture.call()).await;
}

pub async fn a_recovering_store_answers_renewals_and_releases(store_fixture: &StoreFixture) {
    let unknown = lease_of(
        &store_fixture.call(),
        FencingToken::new(1).expect("a token"),
    );
    assert_eq!(
        store_fixture.renew(0, &unknown).await,
        Err(LeaseRejection::NotFound)
    );
    assert_eq!(
        store_fixture.release(0, &unknown).await,
        Err(LeaseRejection::NotFound)
    );
}

pub async fn a_recovering_store_refuses_a_call_that_would_not_wait(store_fixture: &StoreFixture) {
    let call = AcquireCommand {
        rejoin: true,
        ..store_fixture.call()
    };
    recovering_ms(store_fixture.store(0).acquire(&call).await);
}
