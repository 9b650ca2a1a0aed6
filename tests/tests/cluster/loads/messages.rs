//! Pub/sub messages from the masters of a cluster. Every node forwards every message over the
//! cluster bus. The broker processes each message once, possibly twice while the owner of its slot
//! is uncertain, but never ignores it on all nodes.

use std::{collections::BTreeSet, time::Duration};

use leasehold_server::{
    lock::LockKey,
    store::{Event, Store as _},
};
use leasehold_tests::{
    clock::boottime,
    cluster::{
        deployment::{ClusterDeployment, ClusterOptions},
        fixture::{SHARDS, fast_failover_options, initial_slots_of},
        store::{ClusterStore, PREFIX, config, lock_in, slot_of_lock},
    },
    redis::subscriptions::subscription_count,
    scale::print_figures,
    store_fixture::lock_key,
    until::until,
};
use tokio::time::{sleep, timeout};

const MESSAGES: usize = 20;
const ROUNDS_MAX: usize = 5;
const NOTIFIED_WITHIN: Duration = Duration::from_secs(5);
/// Time within which a duplicate arrives.
const SETTLED: Duration = Duration::from_secs(1);
/// Time after which the owner of a moved slot is certain.
const QUIET: Duration = Duration::from_secs(3);
/// Upper bound of the response time of a reachable master.
const TIME_LIMIT: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread")]
async fn each_message_is_processed_once() {
    let mut cluster = ClusterDeployment::start(fast_failover_options()).await;
    let mut store = listening(&cluster).await;
    tells_each_once(&cluster, &mut store, "before").await;

    let lost = 0;
    cluster.kill(lost).await;
    let killed = boottime();
    cluster
        .wait_for_promotion(*initial_slots_of(lost).start(), lost)
        .await;
    // The node on the new master reports that it is connected.
    while store.next_event().await != Event::Resync {}
    let took = boottime() - killed;
    until_listening(&cluster).await;
    sleep(QUIET).await;
    while store.try_event().is_some() {}
    tells_each_once(&cluster, &mut store, "after").await;
    print_figures(&format!(
        "cluster_messages: {MESSAGES} messages from each of {} nodes, each notified once, also after a master had died \
         (its successor told of itself after {took:?})",
        cluster.count()
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_message_is_dropped_by_all_while_a_slot_moves_or_its_master_is_gone() {
    let mut cluster = ClusterDeployment::start(ClusterOptions {
        replicas: 0,
        has_partition_proxies: true,
        ..ClusterOptions::default()
    })
    .await;
    let mut store = listening(&cluster).await;
    let [late, first, second] = [0, 1, 2].map(|index| lock_of(index, "late"));

    // The old master's connection delivers the message only after the slot has moved. The new
    // master's connection delivers it immediately.
    cluster.isolate_from_clients(0);
    for lock in [&late, &first, &second] {
        tell(&cluster, &store, 0, lock).await;
    }
    let others = [first.to_string(), second.to_string()];
    let heard_messages = heard(&mut store, others.len()).await;
    assert_eq!(heard_messages.twice, None);
    assert_eq!(
        heard_messages.locks,
        BTreeSet::from(others),
        "its master's node would notify"
    );
    for lock in [&late, &first] {
        let mut migration = cluster.start_migration(slot_of_lock(lock), 2).await;
        migration.move_remaining_keys().await;
        migration.finish().await;
    }
    // The old master redirects to the new one, so the broker reads the slot map.
    store.store.get(&first).await.expect("an answer");
    until("the broker knows who has the slot", async || {
        let reply = timeout(TIME_LIMIT, store.store.get(&late)).await;
        reply.ok()?.ok()
    })
    .await;
    let held_back = store.try_event();
    assert_eq!(held_back, None, "nothing has come through");
    cluster.heal();
    let heard_messages = store.next_event().await;
    assert!(
        [Event::Rejoin(late.clone()), Event::Resync].contains(&heard_messages),
        "{heard_messages:?}"
    );

    sleep(QUIET).await;
    while store.try_event().is_some() {}
    tells_each_once(&cluster, &mut store, "moved").await;

    cluster.kill(0).await;
    let lost = lock_of(0, "lost");
    until("the broker notices", async || {
        store.store.get(&lost).await.err()
    })
    .await;
    tell(&cluster, &store, 1, &lost).await;
    assert_eq!(store.next_event().await, Event::Rejoin(lost));
    print_figures(&format!(
        "cluster_messages: a message from the old master of a slot that had moved was told ({heard_messages:?}), and one about a \
         lock whose master was gone"
    ));
}

/// Starts a store that has subscribed at every master.
async fn listening(cluster: &ClusterDeployment) -> ClusterStore {
    let mut config = config(cluster);
    config.trust_empty_store = true;
    let mut store = ClusterStore::start(config).await;
    until_listening(cluster).await;
    // A node subscribes before it serves. Until then, other nodes forward messages about its locks
    // as well.
    for master in 0..SHARDS {
        let lock = lock_of(master, "first");
        until("every master serves", async || {
            store.store.get(&lock).await.ok()
        })
        .await;
    }
    while store.try_event().is_some() {}
    store
}

async fn until_listening(cluster: &ClusterDeployment) {
    until("every master is listened to", async || {
        let mut listeners = 0;
        for index in running(cluster) {
            listeners += subscription_count(&mut cluster.server(index).connect().await).await;
        }
        (listeners == SHARDS).then_some(())
    })
    .await;
}

fn running(cluster: &ClusterDeployment) -> impl Iterator<Item = usize> {
    (0..cluster.count()).filter(|index| cluster.server(*index).is_responsive())
}

/// Returns a lock of one of the first masters.
fn lock_of(master: usize, what: &str) -> LockKey {
    lock_in(|slot| initial_slots_of(master).contains(&slot), what)
}

/// Publishes messages about several locks to the broker, at every running node.
async fn tell_all(
    cluster: &ClusterDeployment,
    store: &ClusterStore,
    what: &str,
) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for index in running(cluster) {
        for number in 0..MESSAGES {
            let lock = lock_key("default", &format!("{what}-{index}-{number}"));
            tell(cluster, store, index, &lock).await;
            all.insert(lock.to_string());
        }
    }
    all
}

/// Publishes a message to the broker at any node, as a script does when it removes a waiter.
async fn tell(cluster: &ClusterDeployment, store: &ClusterStore, at: usize, lock: &LockKey) {
    let channel = format!("{PREFIX}b:{}", store.store.broker());
    let message = format!("{PREFIX}{}", lock.encoded());
    let mut raw = cluster.server(at).connect().await;
    raw.must(&["PUBLISH", &channel, &message]).await;
}

/// Messages that a broker has received.
#[derive(Debug, Default)]
struct ReceivedMessages {
    locks: BTreeSet<String>,
    /// A lock with a duplicate message.
    twice: Option<LockKey>,
    /// True if a node has reconnected, so that other nodes may have forwarded messages about its
    /// locks.
    has_node_come_back: bool,
}

/// Publishes messages from every node and asserts that each one is received exactly once. On a busy
/// machine a node may end because its server does not respond in time. Until the node is back, all
/// other nodes forward messages about its locks, so the round is repeated in this case.
async fn tells_each_once(cluster: &ClusterDeployment, store: &mut ClusterStore, what: &str) {
    for round in 0..ROUNDS_MAX {
        let all = tell_all(cluster, store, &format!("{what}-{round}")).await;
        let mut heard_messages = heard(store, all.len()).await;
        assert_eq!(heard_messages.locks, all);
        let Some(twice) = heard_messages.twice.take() else {
            return;
        };
        if !heard_messages.has_node_come_back {
            let back = store.next_event().await;
            assert_eq!(
                back,
                Event::Resync,
                "notified twice, and no node had ended: {twice}"
            );
        }
        sleep(QUIET).await;
        while store.try_event().is_some() {}
    }
    panic!("nodes end all the time");
}

/// Receives messages about at least `count` locks, and further messages within a second.
async fn heard(store: &mut ClusterStore, count: usize) -> ReceivedMessages {
    let mut heard = ReceivedMessages::default();
    loop {
        let patience = if heard.locks.len() < count {
            NOTIFIED_WITHIN
        } else {
            SETTLED
        };
        match timeout(patience, store.next_event()).await {
            Ok(Event::Rejoin(lock)) => {
                if !heard.locks.insert(lock.to_string()) {
                    heard.twice = Some(lock);
                }
            }
            Ok(Event::Resync) => heard.has_node_come_back = true,
            Ok(event) => panic!("unexpected {event:?}"),
            Err(_) => return heard,
        }
    }
}
