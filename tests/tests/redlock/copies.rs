//! Nodes of several that come back with data of their past: what they say is no proof.

use std::time::Duration;

use leasehold_server::{
    lock::{LeaseRef, LockKey, NOT_AFTER_MS, Via},
    store::{
        Acquired, Cancelled, Checked, Renewed, Store as _, StoreError, redis::scripts::Scripts,
    },
};
use leasehold_tests::{
    port::free_port,
    redis_server::Data,
    redlock::RedlockDeployment,
    redlock_broker::{RedlockBroker, call},
    world::{again, lock_named, with_ttl},
};
use tokio::time::{Instant, sleep};

/// A command that was sent before is not executed any more.
const TOO_LATE: Duration = Duration::from_millis(NOT_AFTER_MS + 250);
const TTL_MS: u64 = 2_000;
/// While the lease lives in every copy.
const LIVES: Duration = Duration::from_millis(TTL_MS);

fn lock(name: &str) -> LockKey {
    lock_named("default", name)
}

/// A broker that reaches these nodes only.
async fn broker_of(nodes: &RedlockDeployment, reached: [usize; 3]) -> RedlockBroker {
    let addrs = (0..5).map(|node| {
        let mut addr = nodes.servers()[node].addr();
        if !reached.contains(&node) {
            addr.set_port(free_port());
        }
        addr
    });
    let broker = RedlockBroker::start(nodes.configs_at(addrs), Scripts::standard()).await;
    broker.expect("a quorum is there")
}

async fn renew(broker: &RedlockBroker, lease: &LeaseRef) -> Result<Renewed, StoreError> {
    broker.store.renew(lease, None, Via::Unary).await
}

/// Renews until a node that came back has been heard, and says what the answer was.
async fn settled(broker: &RedlockBroker, lease: &LeaseRef) -> Renewed {
    let start = Instant::now();
    loop {
        match renew(broker, lease).await {
            Ok(renewed) => return renewed,
            Err(StoreError::Unavailable(_)) => assert!(start.elapsed() < LIVES, "it is back"),
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[tokio::test]
async fn what_a_restarted_node_still_knows_is_no_vote() {
    let mut nodes = RedlockDeployment::start(5).await;
    let broker = nodes.broker().await;
    let former = with_ttl(call(&lock("old copy")), 2_000);
    broker.granted(&former).await;
    nodes.servers()[0].connect().await.must(&["SAVE"]).await;
    let freed = broker
        .store
        .cancel(&former.lock, former.request, former.attempt);
    assert_eq!(freed.await, Ok(Cancelled::Freed));
    // The next lease is at nodes 0, 1 and 2; what the others are asked comes too late for them.
    nodes.pause([3, 4]).await;
    let next = broker.granted(&with_ttl(call(&former.lock), 2_000)).await;
    nodes.restart_with_snapshot(0).await;
    sleep(TOO_LATE).await;
    nodes.resume([3, 4]);
    let old = nodes
        .held_at(0, &former.lock)
        .await
        .expect("its snapshot has the former lease");
    assert_eq!(old.lease_id, former.lease_id.to_string());
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(700) {
        let (repeated, _) = broker.timed(&again(&former)).await;
        assert!(
            !matches!(repeated, Ok(Acquired::Granted(_))),
            "{repeated:?}"
        );
    }
    let live = broker.store.check(&next.lock, next.fencing_token).await;
    assert!(
        !matches!(live, Ok(Checked::Live { .. })),
        "a quorum has forgotten it: {live:?}"
    );
}

#[tokio::test]
async fn an_old_copy_renews_no_lease_that_was_given_back() {
    let mut nodes = RedlockDeployment::start(5).await;
    let here = nodes.broker().await;
    // What it does is never heard of at nodes 0 and 1.
    let there = broker_of(&nodes, [2, 3, 4]).await;
    let former = here
        .granted(&with_ttl(call(&lock("revived")), TTL_MS))
        .await;
    while nodes.holders(&former.lock).await < 5 {}
    nodes.servers()[2].connect().await.must(&["SAVE"]).await;
    there.release(&former).await;
    let next = there.granted(&with_ttl(call(&former.lock), TTL_MS)).await;
    nodes.restart_with_snapshot(2).await;
    let old = nodes
        .held_at(2, &former.lock)
        .await
        .expect("its copy has the former lease");
    assert_eq!(old.token, former.fencing_token.get());
    assert_eq!(settled(&here, &former).await, Renewed::Released);
    // Those that know better may be silent, and then nobody knows.
    nodes.pause([3, 4]).await;
    let renewed = renew(&here, &former).await;
    assert!(
        matches!(renewed, Err(StoreError::Unavailable(_))),
        "{renewed:?}"
    );
    nodes.resume([3, 4]);
    let held = nodes
        .held_at(3, &next.lock)
        .await
        .expect("the next lease is there");
    assert_eq!(held.token, next.fencing_token.get());
}

#[tokio::test]
async fn a_lease_is_renewed_by_a_node_that_restarted_with_its_data() {
    let mut nodes = RedlockDeployment::start(5).await;
    let here = nodes.broker().await;
    let there = broker_of(&nodes, [0, 1, 2]).await;
    let held = there.granted(&with_ttl(call(&lock("kept")), TTL_MS)).await;
    nodes.restart(2, Data::Kept).await;
    let renewed = settled(&here, &held).await;
    assert!(matches!(renewed, Renewed::Extended(_)), "{renewed:?}");
}
