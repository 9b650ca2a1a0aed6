//! What the masters of a cluster tell a broker unasked: every node hears every message of every other
//! one, and each is told once, or again while it is doubtful who has its lock, but never by nobody.

use std::{collections::BTreeSet, time::Duration};

use leasehold_server::{
    lock::LockKey,
    store::{Event, Store as _},
};
use leasehold_tests::{
    clock::boottime,
    cluster::{ClusterDeployment, ClusterOptions},
    cluster_site::{SHARDS, quick, shard},
    cluster_store::{ClusterStore, PREFIX, config, lock_in, slot_of_lock},
    scale::figures,
    subscriptions::channels,
    until::until,
    world::lock_named,
};
use tokio::time::{sleep, timeout};

const MESSAGES: usize = 20;
const TOLD_LIMIT: Duration = Duration::from_secs(5);
/// What comes twice comes within this time.
const SETTLED: Duration = Duration::from_secs(1);
/// After it nobody doubts who has a slot that has moved.
const QUIET: Duration = Duration::from_secs(3);
/// An answer of a master that can be reached.
const SOON: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread")]
async fn each_message_is_told_once() {
    let mut cluster = ClusterDeployment::start(quick()).await;
    let mut store = listening(&cluster).await;
    let all = tell_all(&cluster, &store, "before").await;
    assert_eq!(heard(&mut store, all.len()).await, all, "each once");

    let lost = 0;
    cluster.kill(lost).await;
    let killed = boottime();
    cluster.promoted(*shard(lost).start(), lost).await;
    // The node on the new master tells that it is one.
    while store.event().await != Event::Resync {}
    let took = boottime() - killed;
    until_listening(&cluster).await;
    sleep(QUIET).await;
    while store.told().is_some() {}
    let all = tell_all(&cluster, &store, "after").await;
    assert_eq!(heard(&mut store, all.len()).await, all, "each once");
    figures(&format!(
        "cluster_messages: {MESSAGES} messages from each of {} nodes, each told once, also after a master had died \
         (its successor told of itself after {took:?})",
        cluster.count()
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_message_is_dropped_by_all_while_a_slot_moves_or_its_master_is_gone() {
    let mut cluster = ClusterDeployment::start(ClusterOptions {
        replicas: 0,
        gated: true,
        ..ClusterOptions::default()
    })
    .await;
    let mut store = listening(&cluster).await;
    let [late, first, second] = [0, 1, 2].map(|index| lock_of(index, "late"));

    // The old master's node hears of it only when the slot has gone; the new one's, at once.
    cluster.isolate_from_clients(0);
    for lock in [&late, &first, &second] {
        tell(&cluster, &store, 0, lock).await;
    }
    let others = [first.to_string(), second.to_string()];
    let told = heard(&mut store, others.len()).await;
    assert_eq!(told, BTreeSet::from(others), "its master's node would tell");
    for lock in [&late, &first] {
        let mut migration = cluster.begin_migration(slot_of_lock(lock), 2).await;
        migration.move_all().await;
        migration.finish().await;
    }
    // Its old master names the new one, so the map is read.
    store.store.get(&first).await.expect("an answer");
    until("the broker knows who has the slot", async || {
        let looked = timeout(SOON, store.store.get(&late)).await;
        looked.ok()?.ok()
    })
    .await;
    let held_back = store.told();
    assert_eq!(held_back, None, "nothing has come through");
    cluster.heal();
    let told = store.event().await;
    assert!(
        [Event::Rejoin(late.clone()), Event::Resync].contains(&told),
        "{told:?}"
    );

    sleep(QUIET).await;
    while store.told().is_some() {}
    let all = tell_all(&cluster, &store, "moved").await;
    assert_eq!(heard(&mut store, all.len()).await, all, "each once");

    cluster.kill(0).await;
    let lost = lock_of(0, "lost");
    until("the broker notices", async || {
        store.store.get(&lost).await.err()
    })
    .await;
    tell(&cluster, &store, 1, &lost).await;
    assert_eq!(store.event().await, Event::Rejoin(lost));
    figures(&format!(
        "cluster_messages: a message from the old master of a slot that had moved was told ({told:?}), and one about a \
         lock whose master was gone"
    ));
}

/// A broker's store that listens to every master.
async fn listening(cluster: &ClusterDeployment) -> ClusterStore {
    let mut config = config(cluster);
    config.trust_empty_store = true;
    let store = ClusterStore::start(config).await;
    until_listening(cluster).await;
    store
}

async fn until_listening(cluster: &ClusterDeployment) {
    until("every master is listened to", async || {
        let mut listeners = 0;
        for index in running(cluster) {
            listeners += channels(&mut cluster.server(index).connect().await).await;
        }
        (listeners == SHARDS).then_some(())
    })
    .await;
}

fn running(cluster: &ClusterDeployment) -> impl Iterator<Item = usize> {
    (0..cluster.count()).filter(|index| cluster.server(*index).answers())
}

/// A lock of one of the first masters.
fn lock_of(master: usize, what: &str) -> LockKey {
    lock_in(|slot| shard(master).contains(&slot), what)
}

/// Tells the broker of some locks, from every node that runs.
async fn tell_all(
    cluster: &ClusterDeployment,
    store: &ClusterStore,
    what: &str,
) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for index in running(cluster) {
        for number in 0..MESSAGES {
            let lock = lock_named("default", &format!("{what}-{index}-{number}"));
            tell(cluster, store, index, &lock).await;
            all.insert(lock.to_string());
        }
    }
    all
}

/// Tells the broker of a lock as a script does that takes places in line away, at any node.
async fn tell(cluster: &ClusterDeployment, store: &ClusterStore, at: usize, lock: &LockKey) {
    let channel = format!("{PREFIX}b:{}", store.store.broker());
    let message = format!("{PREFIX}{}", lock.encoded());
    let mut raw = cluster.server(at).connect().await;
    raw.must(&["PUBLISH", &channel, &message]).await;
}

/// The locks that a broker is told of, so many at least, and all that come soon after.
async fn heard(store: &mut ClusterStore, count: usize) -> BTreeSet<String> {
    let mut heard = BTreeSet::new();
    loop {
        let patience = if heard.len() < count {
            TOLD_LIMIT
        } else {
            SETTLED
        };
        match timeout(patience, store.event()).await {
            Ok(Event::Rejoin(lock)) => {
                assert!(heard.insert(lock.to_string()), "told twice: {lock}");
            }
            Ok(Event::Resync) => {}
            Ok(event) => panic!("nobody told {event:?}"),
            Err(_) => return heard,
        }
    }
}
