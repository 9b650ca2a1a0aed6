//! RedLock nodes that return with old data, whose replies prove nothing about a lease.

use std::time::Duration;

use leasehold_server::{
    lock::{COMMAND_DEADLINE_MS, ExpectedAttachment, Grant, LeaseRef, LockKey},
    store::{
        Acquired, Cancelled, Checked, LeaseRejection, LeaseReply, Renewal, Store as _, StoreError,
        redis::scripts::Scripts,
    },
};
use leasehold_tests::{
    process::ports::free_port,
    redis::server::RestartData,
    redlock::{
        broker::{RedlockBroker, immediate_call},
        deployment::RedlockDeployment,
    },
    store_fixture::{lock_key, new_attempt, with_ttl},
};
use tokio::time::{Instant, sleep};

/// Time after which a node rejects a command that was sent before, with a margin of 250 ms.
const TOO_LATE: Duration = Duration::from_millis(COMMAND_DEADLINE_MS + 250);
const TTL_MS: u64 = 2_000;
/// Time for which every copy of a lease is alive.
const COPY_LIFETIME: Duration = Duration::from_millis(TTL_MS);

fn lock(name: &str) -> LockKey {
    lock_key("default", name)
}

/// Starts a broker that can connect to these nodes only.
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

async fn renew(broker: &RedlockBroker, lease: &LeaseRef) -> Result<LeaseReply<Grant>, StoreError> {
    broker
        .store
        .renew(lease, Renewal::undelivered(ExpectedAttachment::None))
        .await
}

/// Renews until the store replies again after the restart of a node, and returns the result.
async fn renew_until_answered(broker: &RedlockBroker, lease: &LeaseRef) -> LeaseReply<Grant> {
    let start = Instant::now();
    loop {
        match renew(broker, lease).await {
            Ok(renewed) => return renewed,
            Err(StoreError::Unavailable(_)) => {
                assert!(start.elapsed() < COPY_LIFETIME, "it is back")
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[tokio::test]
async fn records_of_a_restarted_node_are_no_vote() {
    let mut nodes = RedlockDeployment::start(5).await;
    let broker = nodes.start_broker().await;
    let former = with_ttl(immediate_call(&lock("old copy")), 2_000);
    broker.expect_granted(&former).await;
    nodes.servers()[0].connect().await.must(&["SAVE"]).await;
    let freed = broker
        .store
        .cancel(&former.lock, former.request, former.attempt);
    assert_eq!(freed.await, Ok(Cancelled::Freed));
    // The next lease is at nodes 0, 1 and 2. Nodes 3 and 4 receive the command too late to execute
    // it.
    nodes.pause([3, 4]).await;
    let next = broker
        .expect_granted(&with_ttl(immediate_call(&former.lock), 2_000))
        .await;
    nodes.restart_with_snapshot(0).await;
    sleep(TOO_LATE).await;
    nodes.resume([3, 4]);
    let old = nodes
        .holder_at(0, &former.lock)
        .await
        .expect("its snapshot has the former lease");
    assert_eq!(old.lease_id, former.lease_id.to_string());
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(700) {
        let (repeated, _) = broker.acquire_timed(&new_attempt(&former)).await;
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
async fn an_old_copy_renews_no_released_lease() {
    let mut nodes = RedlockDeployment::start(5).await;
    let here = nodes.start_broker().await;
    // Nodes 0 and 1 receive no command of this broker.
    let there = broker_of(&nodes, [2, 3, 4]).await;
    let former = here
        .expect_granted(&with_ttl(immediate_call(&lock("revived")), TTL_MS))
        .await;
    while nodes.holder_count(&former.lock).await < 5 {}
    nodes.servers()[2].connect().await.must(&["SAVE"]).await;
    there.expect_released(&former).await;
    let next = there
        .expect_granted(&with_ttl(immediate_call(&former.lock), TTL_MS))
        .await;
    nodes.restart_with_snapshot(2).await;
    let old = nodes
        .holder_at(2, &former.lock)
        .await
        .expect("its copy has the former lease");
    assert_eq!(old.token, former.fencing_token.get());
    assert_eq!(
        renew_until_answered(&here, &former).await,
        Err(LeaseRejection::Released)
    );
    // If the nodes that have stored the release are unreachable, the state of the lease is unknown.
    nodes.pause([3, 4]).await;
    let renewed = renew(&here, &former).await;
    assert!(
        matches!(renewed, Err(StoreError::Unavailable(_))),
        "{renewed:?}"
    );
    nodes.resume([3, 4]);
    let held = nodes
        .holder_at(3, &next.lock)
        .await
        .expect("the next lease is there");
    assert_eq!(held.token, next.fencing_token.get());
}

#[tokio::test]
async fn a_lease_is_renewed_by_a_node_that_restarted_with_its_data() {
    let mut nodes = RedlockDeployment::start(5).await;
    let here = nodes.start_broker().await;
    let there = broker_of(&nodes, [0, 1, 2]).await;
    let held = there
        .expect_granted(&with_ttl(immediate_call(&lock("kept")), TTL_MS))
        .await;
    nodes.restart(2, RestartData::Kept).await;
    let renewed = renew_until_answered(&here, &held).await;
    assert!(renewed.is_ok(), "{renewed:?}");
}
