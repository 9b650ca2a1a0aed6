//! Renewal, release and fencing tokens.

use leasehold_server::{
    lock::{AcquireCommand, FencingToken, Ttl, expiry_ms},
    store::{Acquired, LeaseRejection, Renewal},
};

use crate::store_fixture::{
    StoreFixture, TTL_MS, assert_remaining, at_most_one, lease_of, lock_key, new_attempt,
    released_before, released_now, with_ttl,
};

pub async fn a_renewal_extends_by_the_present_ttl(store_fixture: &StoreFixture) {
    let lease = store_fixture
        .expect_granted(0, &with_ttl(store_fixture.call(), 20_000))
        .await;
    store_fixture.advance_ms(15_000).await;
    let Ok(grant) = store_fixture.renew(1, &lease).await else {
        panic!("not extended");
    };
    assert_eq!(grant.ttl.as_millis(), 20_000);
    assert_eq!(grant.fencing_token, lease.fencing_token);
    let holder = at_most_one(store_fixture.expect_state().await.holders).expect("held");
    assert_remaining(holder.remaining_ms, expiry_ms(20_000));
}

pub async fn a_renewal_changes_the_ttl_from_then_on(store_fixture: &StoreFixture) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    let longer = Some(Ttl::from_stored(30_000));
    let renewal = Renewal {
        ttl: longer,
        ..Renewal::default()
    };
    let renewed = store_fixture.store(0).renew(&lease, renewal).await;
    assert!(matches!(renewed, Ok(Ok(_))), "{renewed:?}");
    store_fixture.advance_ms(20_000).await;
    let Ok(grant) = store_fixture.renew(0, &lease).await else {
        panic!("not extended");
    };
    assert_eq!(grant.ttl.as_millis(), 30_000);
}

pub async fn a_renewal_never_shortens(store_fixture: &StoreFixture) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    let shorter = Some(Ttl::from_stored(1_000));
    let renewal = Renewal {
        ttl: shorter,
        ..Renewal::default()
    };
    let renewed = store_fixture.store(0).renew(&lease, renewal).await;
    assert!(matches!(renewed, Ok(Ok(_))), "{renewed:?}");
    let holder = at_most_one(store_fixture.expect_state().await.holders).expect("held");
    assert_remaining(holder.remaining_ms, expiry_ms(TTL_MS));
}

pub async fn locks_that_are_renewed_together_have_a_result_each(store_fixture: &StoreFixture) {
    const LOCKS: usize = 70;
    const RELEASED: usize = 3;
    const UNKNOWN: usize = 66;
    let first = store_fixture.call();
    let name = first.lock.encoded();
    let mut leases = Vec::new();
    for index in 0..LOCKS {
        let lock = lock_key("together", &format!("{name}-{index}"));
        let call = AcquireCommand {
            lock,
            ..store_fixture.call()
        };
        leases.push(store_fixture.expect_granted(0, &call).await);
    }
    store_fixture.expect_released(0, &leases[RELEASED]).await;
    leases[UNKNOWN].lease_id = first.lease_id;
    let longer = Ttl::from_stored(30_000);
    let renewal = Renewal {
        ttl: Some(longer),
        ..Renewal::default()
    };
    let results = store_fixture.store(0).renew_many(&leases, renewal).await;
    assert_eq!(results.len(), LOCKS);
    for (index, (lease, result)) in leases.iter().zip(results).enumerate() {
        match (index, result) {
            (RELEASED, Ok(Err(LeaseRejection::Released)))
            | (UNKNOWN, Ok(Err(LeaseRejection::NotFound))) => {}
            (_, Ok(Ok(grant))) if index != RELEASED && index != UNKNOWN => {
                assert_eq!(grant.fencing_token, lease.fencing_token);
                assert_eq!(grant.ttl, longer);
            }
            (_, other) => panic!("lock {index}: {other:?}"),
        }
    }
}

pub async fn a_renewal_keeps_the_time_of_the_grant(store_fixture: &StoreFixture) {
    let call = store_fixture.call();
    let Acquired::Granted(grant) = store_fixture.acquire(0, &call).await else {
        panic!("not granted");
    };
    store_fixture.advance_ms(3_000).await;
    let lease = lease_of(&call, grant.fencing_token);
    assert_eq!(store_fixture.renew(0, &lease).await, Ok(grant));
}

pub async fn any_broker_may_renew_and_release(store_fixture: &StoreFixture) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture.expect_renewed(1, &lease).await;
    assert_eq!(store_fixture.release(2, &lease).await, released_now(0));
}

pub async fn a_lease_that_the_lock_never_knew_is_not_found(store_fixture: &StoreFixture) {
    store_fixture.expect_granted(0, &store_fixture.call()).await;
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

pub async fn a_repeated_release_is_reported_as_repeated(store_fixture: &StoreFixture) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    assert_eq!(store_fixture.release(0, &lease).await, released_now(0));
    assert_eq!(store_fixture.release(1, &lease).await, released_before(0));
    assert_eq!(store_fixture.release(0, &lease).await, released_before(0));
}

pub async fn a_release_after_the_expiry_is_reported_as_late(store_fixture: &StoreFixture) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    assert_eq!(
        store_fixture.release(0, &lease).await,
        Err(LeaseRejection::Expired)
    );
    assert_eq!(
        store_fixture.release(0, &lease).await,
        Err(LeaseRejection::Expired)
    );
}

pub async fn a_release_after_the_expiry_hands_the_lock_on(store_fixture: &StoreFixture) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(0, &waiter).await;
    store_fixture.advance_ms(expiry_ms(TTL_MS)).await;
    assert_eq!(
        store_fixture.release(0, &lease).await,
        Err(LeaseRejection::Expired)
    );
    store_fixture.claim_next_hand_off(0, &waiter).await;
}

pub async fn a_released_lock_is_free_at_once(store_fixture: &StoreFixture) {
    let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
    store_fixture.expect_released(0, &lease).await;
    store_fixture.expect_granted(1, &store_fixture.call()).await;
}

pub async fn tokens_rise_over_release_expiry_and_cancel(store_fixture: &StoreFixture) {
    let mut last = None;
    for round in 0..12 {
        let call = store_fixture.call();
        let lease = store_fixture.expect_granted(round % 4, &call).await;
        assert!(Some(lease.fencing_token) > last);
        last = Some(lease.fencing_token);
        match round % 3 {
            0 => drop(store_fixture.release(0, &lease).await),
            1 => drop(store_fixture.cancel(round % 4, &call).await),
            _ => store_fixture.advance_ms(expiry_ms(TTL_MS)).await,
        }
    }
}

pub async fn tokens_rise_when_the_clock_steps_back(store_fixture: &StoreFixture) {
    let mut last = None;
    for _ in 0..5 {
        let lease = store_fixture.expect_granted(0, &store_fixture.call()).await;
        assert!(Some(lease.fencing_token) > last);
        last = Some(lease.fencing_token);
        store_fixture.expect_released(0, &lease).await;
        store_fixture.step_back_ms(500).await;
    }
}

pub async fn tokens_rise_above_an_unused_token(store_fixture: &StoreFixture) {
    let first = store_fixture.acquire_long(0).await;
    let waiter = store_fixture.waiting_call();
    store_fixture.expect_queued(1, &waiter).await;
    store_fixture.expect_released(0, &first).await;
    let burnt = store_fixture.next_hand_off(1, &waiter).await.fencing_token;
    store_fixture.advance_ms(3_000).await;
    let second = store_fixture.expect_granted(1, &new_attempt(&waiter)).await;
    assert!(first.fencing_token < burnt && burnt < second.fencing_token);
}

pub async fn locks_count_their_tokens_apart(store_fixture: &StoreFixture) {
    let first = store_fixture.expect_granted(0, &store_fixture.call()).await;
    let mut other = store_fixture.call();
    other.lock = crate::store_fixture::lock_key("another-namespace", "the lock");
    store_fixture.expect_granted(0, &other).await;
    assert_eq!(
        store_fixture.expect_state().await.last_fencing_token,
        first.fencing_token.get()
    );
}
