//! Mistakes that lock services are known to have made, each shown not to be made here.

use leasehold_server::{
    lock::{EXPIRED_MS, FencingToken, KEEP_MS, expiry_ms},
    store::{Acquired, Cancelled, Released, Renewed},
};

use crate::world::{SLACK_MS, TTL_MS, World, again, assert_left, lease, lock_named, only};

pub async fn t01_a_lease_of_another_lock_releases_nothing(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    let mut other = world.call();
    other.lock = lock_named("default", "another lock");
    let mut foreign = world.granted(0, &other).await;
    foreign.lock = world.lock.clone();
    assert_eq!(world.release(0, &foreign).await, Released::NotFound);
    world.renewed(0, &lease).await;
}

pub async fn t02_a_late_release_leaves_the_next_holder_alone(world: &World) {
    let first = world.granted(0, &world.call()).await;
    world.release(0, &first).await;
    let second = world.granted(0, &world.call()).await;
    assert_eq!(
        world.release(0, &first).await,
        Released::Already { hold_count: 0 }
    );
    world.renewed(0, &second).await;
}

pub async fn t02_an_old_token_of_the_same_lease_releases_nothing(world: &World) {
    let call = world.call();
    let lease = world.granted(0, &call).await;
    let mut old = lease.clone();
    old.fencing_token = FencingToken::new(lease.fencing_token.get() - 1).expect("a token");
    assert_eq!(world.release(0, &old).await, Released::NotFound);
    assert_eq!(world.renew(0, &old).await, Renewed::NotFound);
    world.renewed(0, &lease).await;
}

pub async fn t03_renewal_never_creates_a_lock(world: &World) {
    let call = world.call();
    let never_granted = lease(&call, FencingToken::new(1).expect("a token"));
    assert_eq!(world.renew(0, &never_granted).await, Renewed::NotFound);
    assert_eq!(world.get().await, None);
}

pub async fn t03_renewal_past_the_expiry_is_refused_although_nobody_took_the_lock(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    assert_eq!(world.renew(0, &lease).await, Renewed::Expired);
    assert_eq!(only(world.state().await.holders), None);
}

pub async fn t03_renewal_never_extends_the_lease_of_another(world: &World) {
    let old = world.granted(0, &world.call()).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    world.granted(1, &world.call()).await;
    world.advance_ms(8_000).await;
    assert_eq!(world.renew(0, &old).await, Renewed::Expired);
    let holder = only(world.state().await.holders).expect("held");
    assert_left(holder.remaining_ms, expiry_ms(TTL_MS) - 8_000);
}

pub async fn t04_a_renewal_after_the_release_is_told_so(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    world.release(0, &lease).await;
    assert_eq!(world.renew(0, &lease).await, Renewed::Released);
    assert_eq!(only(world.state().await.holders), None);
}

pub async fn t04_renewal_and_release_at_once_leave_the_lock_free(world: &World) {
    for _ in 0..10 {
        let lease = world.granted(0, &world.call()).await;
        let (_, released) = tokio::join!(world.renew(1, &lease), world.release(0, &lease));
        assert_eq!(released, Released::Now { hold_count: 0 });
        assert_eq!(only(world.state().await.holders), None);
    }
}

pub async fn t05_a_cancelled_waiter_is_never_granted(world: &World) {
    let lease = world.held_by(0).await;
    let (gone, next) = (world.waiting(), world.waiting());
    world.queued(1, &gone).await;
    world.queued(1, &next).await;
    assert_eq!(world.cancel(1, &gone).await, Cancelled::Dequeued);
    world.release(0, &lease).await;
    world.handed(1, &next).await;
}

pub async fn t05_a_grant_that_nobody_receives_goes_to_the_next_waiter(world: &World) {
    let lease = world.held_by(0).await;
    let (gone, next) = (world.waiting(), world.waiting());
    world.queued(1, &gone).await;
    world.queued(1, &next).await;
    world.release(0, &lease).await;
    world.hand_off(1, &gone).await;
    assert_eq!(world.cancel(1, &gone).await, Cancelled::Freed);
    world.handed(1, &next).await;
}

pub async fn t07_a_repeat_after_a_lost_reply_gets_the_same_grant(world: &World) {
    let call = world.call();
    let first = world.granted(0, &call).await;
    assert_eq!(world.granted(0, &again(&call)).await, first);
    assert_eq!(
        world.release(0, &first).await,
        Released::Now { hold_count: 0 }
    );
    assert_eq!(only(world.state().await.holders), None);
}

pub async fn t08_a_waiter_past_its_time_is_not_granted_but_the_next_is(world: &World) {
    let lease = world.held_by(0).await;
    let (late, next) = (world.waiting_for(2_000), world.waiting());
    world.queued(1, &late).await;
    world.queued(1, &next).await;
    world.advance_ms(expiry_ms(2_000)).await;
    world.release(0, &lease).await;
    world.handed(1, &next).await;
    assert_eq!(world.state().await.queue_length, 0);
}

pub async fn t09_waiters_of_a_dead_broker_do_not_stay_in_line(world: &World) {
    let lease = world.held_by(0).await;
    let (ghost, live) = (world.waiting(), world.waiting());
    world.queued(1, &ghost).await;
    world.queued(2, &live).await;
    world.pass_ms(13_500, &[2]).await;
    world.release(0, &lease).await;
    world.handed(2, &live).await;
    assert_eq!(world.state().await.queue_length, 0);
}

pub async fn t10_waiters_of_a_live_broker_are_never_purged(world: &World) {
    let holder = world.call();
    let lease = world.granted(0, &holder).await;
    let (patient, other) = (world.waiting(), world.waiting());
    world.queued(1, &patient).await;
    world.queued(2, &other).await;
    for _ in 0..6 {
        world.pass_ms(6_000, &[1, 2]).await;
        world.renewed(0, &lease).await;
    }
    assert!(!world.touch(1).await.rejoin);
    world.release(0, &lease).await;
    world.handed(1, &patient).await;
}

pub async fn t10_a_broker_whose_waiters_were_dropped_is_told(world: &World) {
    let lease = world.held_by(0).await;
    let (dropped, live) = (world.waiting(), world.waiting());
    world.queued(1, &dropped).await;
    world.queued(2, &live).await;
    world.pass_ms(13_500, &[2]).await;
    world.release(0, &lease).await;
    assert!(world.touch(1).await.rejoin);
    world.queued(1, &again(&dropped)).await;
}

pub async fn t11_each_waiter_has_its_own_deadline(world: &World) {
    let lease = world.held_by(0).await;
    let waits = [4_000, 40_000, 2_000].map(|wait_ms| world.waiting_for(wait_ms));
    for waiter in &waits {
        world.queued(1, waiter).await;
    }
    world.advance_ms(4_001).await;
    let left = world.state().await.waiters;
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].owner, waits[1].owner);
    assert_left(left[0].remaining_ms, 40_000 - 4_001);
    world.advance_ms(expiry_ms(4_000) - 4_001).await;
    world.release(0, &lease).await;
    world.handed(1, &waits[1]).await;
}

pub async fn t12_all_times_are_those_of_the_store(world: &World) {
    let Acquired::Granted(first) = world.acquire(0, &world.call()).await else {
        panic!("not granted");
    };
    world.advance_ms(100_000).await;
    let Acquired::Granted(second) = world.acquire(1, &world.call()).await else {
        panic!("the expiry is not judged by the store's clock");
    };
    let apart_ms = second.acquired_ms - first.acquired_ms;
    assert!(
        (100_000..100_000 + SLACK_MS).contains(&apart_ms),
        "{apart_ms}"
    );
    assert_eq!(second.fencing_token.get() / 1_000, second.acquired_ms);
}

pub async fn t13_a_newcomer_never_passes_a_waiter(world: &World) {
    let lease = world.held_by(0).await;
    let waiter = world.waiting();
    world.queued(1, &waiter).await;
    world.release(0, &lease).await;
    assert!(world.hand_off(1, &waiter).await.provisional);
    let barging = world.acquire(2, &world.call()).await;
    assert!(matches!(barging, Acquired::Held(_)), "{barging:?}");
    let newcomer = world.waiting();
    world.queued(0, &newcomer).await;
    let owners = world.state().await.waiters;
    let owners: Vec<_> = owners.iter().map(|waiting| &waiting.owner).collect();
    assert_eq!(owners, [&waiter.owner, &newcomer.owner]);
}

pub async fn t13_the_first_in_line_gets_an_expired_lock_whoever_notices(world: &World) {
    world.granted(0, &world.call()).await;
    let waiter = world.waiting();
    world.queued(1, &waiter).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    let noticing = world.acquire(2, &world.call()).await;
    assert!(matches!(noticing, Acquired::Held(_)), "{noticing:?}");
    world.handed(1, &waiter).await;
}

pub async fn t27_a_token_belongs_to_a_grant_and_repeats_do_not_change_it(world: &World) {
    let call = world.call();
    let lease = world.granted(0, &call).await;
    for _ in 0..3 {
        world.renewed(0, &lease).await;
        assert_eq!(world.granted(1, &again(&call)).await, lease);
    }
    assert_eq!(
        world.state().await.last_fencing_token,
        lease.fencing_token.get()
    );
    assert!(lease.fencing_token.get() <= FencingToken::MAX);
}

pub async fn t28_a_former_holder_never_learns_the_token_of_the_next(world: &World) {
    let old = world.call();
    let first = world.granted(0, &old).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    let second = world.granted(1, &world.call()).await;
    assert!(second.fencing_token > first.fencing_token);
    assert_eq!(world.acquire(0, &again(&old)).await, Acquired::Ended);
    assert_eq!(world.renew(0, &first).await, Renewed::Expired);
    let borrowed = lease(&old, second.fencing_token);
    assert_ne!(
        world.release(0, &borrowed).await,
        Released::Now { hold_count: 0 }
    );
    world.renewed(1, &second).await;
}

pub async fn t35_an_idle_lock_is_forgotten(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    world.release(0, &lease).await;
    world.advance_ms(KEEP_MS - EXPIRED_MS).await;
    assert!(world.get().await.is_some());
    world
        .advance_ms(EXPIRED_MS + expiry_ms(TTL_MS) + SLACK_MS)
        .await;
    assert_eq!(world.get().await, None);
}

pub async fn t35_an_abandoned_line_is_forgotten(world: &World) {
    world.granted(0, &world.call()).await;
    world.queued(1, &world.waiting_for(60_000)).await;
    world.advance_ms(60_000 + KEEP_MS + SLACK_MS).await;
    assert_eq!(world.get().await, None);
}

pub async fn t35_commands_that_find_nothing_leave_nothing(world: &World) {
    let unknown = lease(&world.call(), FencingToken::new(7).expect("a token"));
    assert_eq!(world.release(0, &unknown).await, Released::NotFound);
    assert_eq!(world.renew(0, &unknown).await, Renewed::NotFound);
    world.touch(0).await;
    assert_eq!(world.get().await, None);
}

pub async fn t36_a_command_sees_its_own_lock_only(world: &World) {
    let mut calls = ["job", "job:1", "job*", "jo?", "[j]ob"].map(|name| {
        let mut call = world.call();
        call.lock = lock_named("default", name);
        call
    });
    calls[1].lock = lock_named("job", "job:1");
    for call in &calls {
        world.granted(0, call).await;
    }
    for call in &calls {
        let state = world
            .store(0)
            .get(&call.lock)
            .await
            .expect("get")
            .expect("known");
        assert_eq!(only(state.holders).expect("held").lease_id, call.lease_id);
    }
}

pub async fn t38_names_that_look_like_keys_do_not_collide(world: &World) {
    let names = [
        "a",
        "{a}",
        "a}",
        "{a",
        "}{",
        "%7Ba%7D",
        "%257Ba",
        "a:b",
        ":a",
        "default:a",
        " a",
        "ä",
        "a b",
        "a%",
    ];
    for name in names {
        let mut call = world.call();
        call.lock = lock_named("default", name);
        let lease = world.granted(0, &call).await;
        assert_eq!(lease.lock.name(), name);
    }
    let mut elsewhere = world.call();
    elsewhere.lock = lock_named("a", "b");
    world.granted(0, &elsewhere).await;
}
