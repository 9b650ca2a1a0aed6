//! Renewal, release and fencing tokens.

use leasehold_server::{
    lock::{FencingToken, Ttl, Via, expiry_ms},
    store::{Acquired, Released, Renewed},
};

use crate::world::{TTL_MS, World, again, assert_left, lease, only, with_ttl};

pub async fn a_renewal_extends_by_the_present_ttl(world: &World) {
    let lease = world.granted(0, &with_ttl(world.call(), 20_000)).await;
    world.advance_ms(15_000).await;
    let Renewed::Extended(grant) = world.renew(1, &lease).await else {
        panic!("not extended");
    };
    assert_eq!(grant.ttl.as_millis(), 20_000);
    assert_eq!(grant.fencing_token, lease.fencing_token);
    let holder = only(world.state().await.holders).expect("held");
    assert_left(holder.remaining_ms, expiry_ms(20_000));
}

pub async fn a_renewal_changes_the_ttl_from_then_on(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    let longer = Some(Ttl::from_stored(30_000));
    world
        .store(0)
        .renew(&lease, longer, Via::Anywhere)
        .await
        .expect("renew");
    world.advance_ms(20_000).await;
    let Renewed::Extended(grant) = world.renew(0, &lease).await else {
        panic!("not extended");
    };
    assert_eq!(grant.ttl.as_millis(), 30_000);
}

pub async fn a_renewal_never_shortens(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    let shorter = Some(Ttl::from_stored(1_000));
    world
        .store(0)
        .renew(&lease, shorter, Via::Anywhere)
        .await
        .expect("renew");
    let holder = only(world.state().await.holders).expect("held");
    assert_left(holder.remaining_ms, expiry_ms(TTL_MS));
}

pub async fn a_renewal_keeps_the_time_of_the_grant(world: &World) {
    let call = world.call();
    let Acquired::Granted(grant) = world.acquire(0, &call).await else {
        panic!("not granted");
    };
    world.advance_ms(3_000).await;
    let lease = lease(&call, grant.fencing_token);
    assert_eq!(world.renew(0, &lease).await, Renewed::Extended(grant));
}

pub async fn any_broker_may_renew_and_release(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    world.renewed(1, &lease).await;
    assert_eq!(
        world.release(2, &lease).await,
        Released::Now { hold_count: 0 }
    );
}

pub async fn a_lease_that_the_lock_never_knew_is_not_found(world: &World) {
    world.granted(0, &world.call()).await;
    let unknown = lease(&world.call(), FencingToken::new(1).expect("a token"));
    assert_eq!(world.renew(0, &unknown).await, Renewed::NotFound);
    assert_eq!(world.release(0, &unknown).await, Released::NotFound);
}

pub async fn a_repeated_release_is_told_so(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    assert_eq!(
        world.release(0, &lease).await,
        Released::Now { hold_count: 0 }
    );
    assert_eq!(
        world.release(1, &lease).await,
        Released::Already { hold_count: 0 }
    );
    assert_eq!(
        world.release(0, &lease).await,
        Released::Already { hold_count: 0 }
    );
}

pub async fn a_release_after_the_expiry_is_told_that_it_was_late(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    assert_eq!(world.release(0, &lease).await, Released::Expired);
    assert_eq!(world.release(0, &lease).await, Released::Expired);
}

pub async fn a_release_after_the_expiry_hands_the_lock_on(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    let waiter = world.waiting();
    world.queued(0, &waiter).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    assert_eq!(world.release(0, &lease).await, Released::Expired);
    world.handed(0, &waiter).await;
}

pub async fn a_released_lock_is_free_at_once(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    world.release(0, &lease).await;
    world.granted(1, &world.call()).await;
}

pub async fn tokens_rise_over_release_expiry_and_cancel(world: &World) {
    let mut last = None;
    for round in 0..12 {
        let call = world.call();
        let lease = world.granted(round % 4, &call).await;
        assert!(Some(lease.fencing_token) > last);
        last = Some(lease.fencing_token);
        match round % 3 {
            0 => drop(world.release(0, &lease).await),
            1 => drop(world.cancel(round % 4, &call).await),
            _ => world.advance_ms(expiry_ms(TTL_MS)).await,
        }
    }
}

pub async fn tokens_rise_when_the_clock_steps_back(world: &World) {
    let mut last = None;
    for _ in 0..5 {
        let lease = world.granted(0, &world.call()).await;
        assert!(Some(lease.fencing_token) > last);
        last = Some(lease.fencing_token);
        world.release(0, &lease).await;
        world.step_back_ms(500).await;
    }
}

pub async fn tokens_rise_past_one_that_was_burnt(world: &World) {
    let first = world.held_by(0).await;
    let waiter = world.waiting();
    world.queued(1, &waiter).await;
    world.release(0, &first).await;
    let burnt = world.hand_off(1, &waiter).await.fencing_token;
    world.advance_ms(3_000).await;
    let second = world.granted(1, &again(&waiter)).await;
    assert!(first.fencing_token < burnt && burnt < second.fencing_token);
}

pub async fn locks_count_their_tokens_apart(world: &World) {
    let first = world.granted(0, &world.call()).await;
    let mut other = world.call();
    other.lock = crate::world::lock_named("another-namespace", "the lock");
    world.granted(0, &other).await;
    assert_eq!(
        world.state().await.last_fencing_token,
        first.fencing_token.get()
    );
}
