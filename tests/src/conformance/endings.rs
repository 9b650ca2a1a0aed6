//! Ends of leases that nobody gave back: told once, to the broker whose command found them.

use leasehold_server::{
    lock::{Acquire, Force, Release, Revoke, Via, expiry_ms},
    store::{Ending, EndingKind},
};

use crate::world::{SLACK_MS, TTL_MS, World, with_terms};

/// What broker `n` is told next, of that call and so many milliseconds after its grant.
async fn ended(world: &World, n: usize, call: &Acquire, kind: EndingKind, held_ms: u64) -> Ending {
    let ending = world.ended(n).await;
    assert_eq!(ending.kind, kind);
    assert_eq!(
        (ending.lease_id, &ending.owner),
        (call.lease_id, &call.owner)
    );
    let most_ms = held_ms + SLACK_MS;
    assert!((held_ms..=most_ms).contains(&ending.held_ms), "{ending:?}");
    ending
}

/// No broker is told of any end besides.
async fn nothing_more(world: &World) {
    for n in 0..4 {
        let more = world.more_ended(n).await;
        assert!(more.is_empty(), "broker {n} was told of {more:?}");
    }
}

pub async fn an_expiry_is_told_once_to_the_broker_that_noticed_it(world: &World) {
    let mut call = world.call();
    call.owner.id = "of|broker!\n0".to_owned();
    let held = world.granted(0, &call).await;
    world.advance_ms(expiry_ms(TTL_MS)).await;
    let next = world.held_by(1).await;
    let ending = ended(world, 1, &call, EndingKind::Expired, expiry_ms(TTL_MS)).await;
    assert_eq!(ending.fencing_token, held.fencing_token.get());
    assert_eq!(ending.reason, "");
    world.renew(0, &held).await;
    world.release(2, &held).await;
    world.release(3, &next).await;
    nothing_more(world).await;
}

pub async fn what_is_given_back_is_no_end_to_tell(world: &World) {
    let held = world.held_by(0).await;
    world.release(0, &held).await;
    let taken_back = world.call();
    world.granted(1, &taken_back).await;
    world.cancel(1, &taken_back).await;
    world.held_by(2).await;
    nothing_more(world).await;
}

pub async fn an_end_by_max_hold_is_told_as_that(world: &World) {
    let call = with_terms(world.call(), 5_000, 0);
    world.granted(0, &call).await;
    world.advance_ms(expiry_ms(5_000)).await;
    world.held_by(3).await;
    ended(world, 3, &call, EndingKind::MaxHold, expiry_ms(5_000)).await;
    nothing_more(world).await;
}

pub async fn an_operators_end_is_told_with_its_reason(world: &World) {
    let revoke = |call: &Acquire, force| Revoke {
        lock: call.lock.clone(),
        lease_id: call.lease_id,
        reason: "it hangs | really!".to_owned(),
        grace_ms: 0,
        lock_delay_ms: None,
        force,
    };
    let at_once = world.call();
    world.granted(0, &at_once).await;
    let command = revoke(&at_once, Force::Unsafe);
    world.store(1).revoke(&command).await.expect("revoke");
    let ending = ended(world, 1, &at_once, EndingKind::Revoked, 0).await;
    assert_eq!(ending.reason, command.reason);
    let in_time = world.call();
    world.granted(0, &in_time).await;
    let command = revoke(&in_time, Force::Revoke);
    world.store(1).revoke(&command).await.expect("revoke");
    world.advance_ms(expiry_ms(TTL_MS)).await;
    world.held_by(2).await;
    let ending = ended(world, 2, &in_time, EndingKind::Revoked, expiry_ms(TTL_MS)).await;
    assert_eq!(ending.reason, command.reason);
    nothing_more(world).await;
}

pub async fn a_lapse_is_told_as_an_expiry(world: &World) {
    let call = world.call();
    let held = world.granted(0, &call).await;
    let lapsed = world.store(2).release(&held, Release::Lapse, Via::Anywhere);
    lapsed.await.expect("lapse");
    ended(world, 2, &call, EndingKind::Expired, 0).await;
    nothing_more(world).await;
}
