//! A store that may have lost data: nothing new is granted until every lease it may have forgotten
//! is over, and everything else goes on. Each behaviour begins in [`Start::Recovering`].
//!
//! [`Start::Recovering`]: crate::world::Start::Recovering

use leasehold_server::{
    lock::{Acquire, FencingToken},
    store::{Cancelled, Released, Renewed},
};

use crate::world::{SLACK_MS, World, again, lease, only, recovering_ms};

pub async fn a_recovering_store_grants_nothing_and_says_for_how_long(world: &World) {
    let refused = world.store(0).acquire(&world.call()).await;
    let left_ms = recovering_ms(refused);
    assert!(left_ms > 0 && left_ms <= world.quarantine_ms());
    let refused = world.store(0).acquire(&world.waiting()).await;
    assert!(recovering_ms(refused) <= left_ms);
    assert_eq!(world.get().await, None);
}

pub async fn a_recovering_store_grants_when_the_time_is_over(world: &World) {
    world.advance_ms(world.quarantine_ms() - 2 * SLACK_MS).await;
    let call = world.call();
    recovering_ms(world.store(0).acquire(&call).await);
    world.advance_ms(2 * SLACK_MS).await;
    world.granted(0, &again(&call)).await;
}

pub async fn a_waiter_joins_a_recovering_store_again_and_is_granted_afterwards(world: &World) {
    let waiters = [(); 2].map(|()| Acquire {
        rejoin: true,
        ..world.waiting()
    });
    for (n, waiter) in waiters.iter().enumerate() {
        let next_event_ms = world.queued(n, waiter).await;
        assert!(next_event_ms > 0 && next_event_ms <= world.quarantine_ms());
    }
    assert_eq!(only(world.touch(1).await.held), None);
    world.advance_ms(world.quarantine_ms()).await;
    let told = only(world.touch(0).await.held).expect("granted when the time is over");
    assert_eq!(told.request, waiters[0].request);
    world
        .release(0, &lease(&waiters[0], told.fencing_token))
        .await;
    world.handed(1, &waiters[1]).await;
}

pub async fn a_waiter_leaves_a_recovering_store(world: &World) {
    let waiter = Acquire {
        rejoin: true,
        ..world.waiting()
    };
    world.queued(0, &waiter).await;
    assert_eq!(world.cancel(0, &waiter).await, Cancelled::Dequeued);
    world.advance_ms(world.quarantine_ms()).await;
    world.granted(1, &world.call()).await;
}

pub async fn a_recovering_store_answers_renewals_and_releases(world: &World) {
    let unknown = lease(&world.call(), FencingToken::new(1).expect("a token"));
    assert_eq!(world.renew(0, &unknown).await, Renewed::NotFound);
    assert_eq!(world.release(0, &unknown).await, Released::NotFound);
}

pub async fn a_recovering_store_refuses_a_call_that_would_not_wait(world: &World) {
    let call = Acquire {
        rejoin: true,
        ..world.call()
    };
    recovering_ms(world.store(0).acquire(&call).await);
}
