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
const ROUNDS_MAX: usize = 5;
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
    tells_each_once(&cluster, &mut store, "before").await;

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
    tells_each_once(&cluster, &mut store, "after").await;
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
    assert_eq!(told.twice, None);
    assert_eq!(
        told.locks,
        BTreeSet::from(others),
        "its master's node would tell"
    );
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
    tells_each_once(&cluster, &mut store, "moved").await;

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
    let mut store = ClusterStore::start(config).await;
    until_listening(cluster).await;
    // A node listens before it serves; until then the others tell of its locks, too.
    for master in 0..SHARDS {
        let lock = lock_of(master, "first");
        until("every master serves", async || {
            store.store.get(&lock).await.ok()
        })
        .await;
    }
    while store.told().is_some() {}
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

/// What a broker was told.
#[derive(Debug, Default)]
struct Heard {
    locks: BTreeSet<String>,
    /// A lock of which it was told again.
    twice: Option<LockKey>,
    /// A node has reconnected, so that others may have told of its locks before.
    has_node_come_back: bool,
}

/// Publishes messages from every node and asserts that each one is told exactly once. On a busy machine a node may
/// end because its server does not answer in time. Until it is back, all other nodes tell of its locks, so a round
/// in which that happened is repeated.
async fn tells_each_once(cluster: &ClusterDeployment, store: &mut ClusterStore, what: &str) {
    for round in 0..ROUNDS_MAX {
        let all = tell_all(cluster, store, &format!("{what}-{round}")).await;
        let mut told = heard(store, all.len()).await;
        assert_eq!(told.locks, all);
        let Some(twice) = told.twice.take() else {
            return;
        };
        if !told.has_node_come_back {
            let back = store.event().await;
            assert_eq!(
                back,
                Event::Resync,
                "told twice, and no node had ended: {twice}"
            );
        }
        sleep(QUIET).await;
        while store.told().is_some() {}
    }
    panic!("nodes end all the time");
}

/// Collects what the broker is told: at least `count` locks, and whatever follows within a second.
async fn heard(store: &mut ClusterStore, count: usize) -> Heard {
    let mut heard = Heard::default();
    loop {
        let patience = if heard.locks.len() < count {
            TOLD_LIMIT
        } else {
            SETTLED
        };
        match timeout(patience, store.event()).await {
            Ok(Event::Rejoin(lock)) => {
                if !heard.locks.insert(lock.to_string()) {
                    heard.twice = Some(lock);
                }
            }
            Ok(Event::Resync) => heard.has_node_come_back = true,
            Ok(event) => panic!("nobody told {event:?}"),
            Err(_) => return heard,
        }
    }
}
