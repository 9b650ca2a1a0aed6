//! Looking at a lock.

use leasehold_server::{
    lock::{SHOWN_MAX, expiry_ms},
    store::Acquired,
};

use crate::world::{LONG_MS, SLACK_MS, TTL_MS, World, assert_left, only};

pub async fn an_unknown_lock_is_unknown(world: &World) {
    assert_eq!(world.get().await, None);
}

pub async fn a_holder_is_shown_with_owner_token_and_times(world: &World) {
    let mut call = world.call();
    call.owner.reason = "to see {it} with % and \"quotes\"\u{1F512}".to_owned();
    call.owner.labels = vec![
        ("k".to_owned(), "v w".to_owned()),
        ("l".to_owned(), String::new()),
    ];
    let Acquired::Granted(grant) = world.acquire(0, &call).await else {
        panic!("not granted");
    };
    let holder = only(world.state().await.holders).expect("held");
    assert_eq!(holder.owner, call.owner);
    assert_eq!(holder.lease_id, call.lease_id);
    assert_eq!(holder.fencing_token, grant.fencing_token);
    assert_eq!(holder.since_ms, grant.acquired_ms);
    assert_left(holder.remaining_ms, expiry_ms(TTL_MS));
}

pub async fn waiters_are_shown_in_order_with_their_times(world: &World) {
    let held = world.held_by(0).await;
    let calls = [5, 10, 15].map(|seconds| world.waiting_for(seconds * 1_000));
    for (n, call) in calls.iter().enumerate() {
        world.queued(n, call).await;
    }
    let state = world.state().await;
    assert_eq!(
        only(state.holders).expect("held").fencing_token,
        held.fencing_token
    );
    assert_eq!(state.queue_length, 3);
    for (shown, call) in state.waiters.iter().zip(&calls) {
        assert_eq!(shown.owner, call.owner);
        assert_left(shown.remaining_ms, call.wait_ms);
    }
}

pub async fn a_waiter_keeps_the_time_at_which_it_joined(world: &World) {
    world.held_by(0).await;
    let call = world.waiting();
    world.queued(1, &call).await;
    let since_ms = world.state().await.waiters[0].since_ms;
    world.advance_ms(5_000).await;
    world.queued(2, &crate::world::again(&call)).await;
    let shown = world.state().await.waiters.remove(0);
    assert_eq!(shown.since_ms, since_ms);
    assert_left(shown.remaining_ms, LONG_MS);
}

pub async fn at_most_a_hundred_waiters_are_shown_and_all_are_counted(world: &World) {
    world.held_by(0).await;
    let calls: Vec<_> = (0..SHOWN_MAX + 20).map(|_| world.waiting()).collect();
    for call in &calls {
        world.queued(1, call).await;
    }
    let state = world.state().await;
    assert_eq!(state.waiters.len(), SHOWN_MAX);
    assert_eq!(state.queue_length as usize, SHOWN_MAX + 20);
    let shown = state.waiters.iter().map(|waiting| &waiting.owner);
    assert!(shown.eq(calls[..SHOWN_MAX].iter().map(|call| &call.owner)));
}

pub async fn an_expired_holder_is_not_shown(world: &World) {
    let lease = world.granted(0, &world.call()).await;
    world.advance_ms(expiry_ms(TTL_MS) - SLACK_MS).await;
    assert!(only(world.state().await.holders).is_some());
    world.advance_ms(SLACK_MS).await;
    let state = world.state().await;
    assert_eq!(only(state.holders), None);
    assert_eq!(state.last_fencing_token, lease.fencing_token.get());
}

pub async fn a_refused_call_is_told_the_holder_and_the_length_of_the_line(world: &World) {
    let held = world.held_by(0).await;
    world.queued(1, &world.waiting()).await;
    world.queued(2, &world.waiting()).await;
    let Acquired::Held(contention) = world.acquire(3, &world.call()).await else {
        panic!("not refused");
    };
    assert_eq!(contention.queue_length, 2);
    let holder = only(contention.holders).expect("held");
    assert_eq!(holder.fencing_token, held.fencing_token);
}

pub async fn looking_grants_nothing(world: &World) {
    world.granted(0, &world.call()).await;
    let waiter = world.waiting();
    world.queued(1, &waiter).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    let before = world.state().await.last_fencing_token;
    assert_eq!(world.state().await.last_fencing_token, before);
    assert_eq!(world.state().await.queue_length, 1);
    world.touch(1).await;
    assert!(world.state().await.last_fencing_token > before);
}
