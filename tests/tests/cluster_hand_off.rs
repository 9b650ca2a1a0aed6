//! Locks of a cluster that go from waiter to waiter across brokers: in the order of the line, told by
//! one message over the bus, and also while the node dies that told them.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::future::join_all;
use leasehold_server::{
    lock::{BrokerId, DeploymentKey},
    store::{
        Event, Store as _,
        redis::{RedisStore, connection::RedisConfig, place::Place, scripts::Scripts},
    },
};
use leasehold_tests::{
    broker_process::KEY_PREFIX,
    client::{AcquireCall, Client, Held, Open},
    clock::boottime,
    cluster::{ClusterDeployment, ClusterOptions},
    cluster_site::{ClusterSite, SHARDS, TTL, locks_in, quick, shard},
    redis_server::Data,
    scale::{count, figures},
    shared_redis::address,
    subscriptions::channels,
    until::until,
};
use tokio::{
    sync::mpsc::{self, UnboundedReceiver},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

const BROKERS: usize = 3;
/// Each broker twice.
const IN_LINE: usize = 2 * BROKERS;
/// Lines that go on at the same time.
const AT_ONCE: usize = 3;
const WAIT: Duration = Duration::from_secs(60);
/// How long a hand-off may take whose message was lost.
const FOUND_WITHIN: Duration = Duration::from_secs(4);
/// How long one takes whose message comes: a touch would come later.
const TOLD_WITHIN: Duration = Duration::from_millis(200);
const MESSAGES: usize = 20;
const TOLD_LIMIT: Duration = Duration::from_secs(5);
/// What comes twice comes within this time.
const SETTLED: Duration = Duration::from_secs(1);
const OF_OTHERS: usize = 6;

/// A case on its own keeps two cores busy: side by side, calls would be late.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// One lock that went on.
#[derive(Debug, Clone, Copy)]
struct HandOff {
    token: i64,
    /// From the sending of the release to the grant.
    took: Duration,
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_go_on_in_the_order_of_their_lines() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let site = ClusterSite::start(ClusterOptions::default(), BROKERS).await;
    let client = Client::new("waiter", &site.addrs(), 0);
    let each = count(100, 10);
    let shards: Vec<_> = (0..SHARDS)
        .map(|index| locks_in(&shard(index), "line", each))
        .collect();
    let mut took = Vec::new();
    let mut inversions = 0;
    for round in 0..each {
        let names = shards
            .iter()
            .map(|names| names[round].as_str())
            .take(AT_ONCE);
        for line in join_all(names.map(|name| go_through(&client, name))).await {
            inversions += line
                .windows(2)
                .filter(|pair| pair[0].token >= pair[1].token)
                .count();
            took.extend(line.into_iter().map(|hand_off| hand_off.took));
        }
    }
    figures(&format!(
        "cluster_hand_off: brokers={BROKERS} lines={} hand_offs={} {} inversions={inversions}",
        each * SHARDS,
        took.len(),
        percentiles(&mut took)
    ));
    assert_eq!((took.len(), inversions), (each * SHARDS * IN_LINE, 0));
    // Without messages each would wait for a touch.
    assert!(
        took[took.len() / 2] < Duration::from_millis(200),
        "messages come"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_node_that_told_of_hand_offs_holds_up_nobody() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let mut site = ClusterSite::start(quick(), BROKERS).await;
    let client = Client::new("waiter", &site.addrs(), 0);
    // Every node hears every message, and one of them passes it on: the first by address, as long as
    // it lives.
    let mut by_address: Vec<_> = (0..SHARDS).collect();
    by_address.sort_by_key(|master| site.cluster.addr(*master));
    for victim in by_address.into_iter().take(count(SHARDS, 1)) {
        let slot = *shard(victim).start();
        let others = (0..SHARDS).filter(|other| *other != victim);
        let names: Vec<_> = others
            .flat_map(|other| locks_in(&shard(other), &format!("dead-{victim}"), OF_OTHERS))
            .collect();
        let lines = join_all(names.iter().map(|name| line_up(&client, name))).await;
        let master = site.cluster.master_of(slot).await;
        site.cluster.kill(master).await;
        let gone = join_all(lines.into_iter().map(|line| line.go(&client))).await;
        let mut lost: Vec<_> = gone.concat().iter().map(|hand_off| hand_off.took).collect();
        let next = site.cluster.promoted(slot, master).await;
        let elsewhere = shard((victim + 1) % SHARDS);
        let name = locks_in(&elsewhere, &format!("after-{victim}"), 1).remove(0);
        let after = go_through(&client, &name).await;
        let mut after: Vec<_> = after.iter().map(|hand_off| hand_off.took).collect();
        site.cluster.restart(master, Data::Kept).await;
        site.cluster.ready().await;
        figures(&format!(
            "cluster_hand_off: master {master} killed, {next} in its place: {} hand-offs of other shards at that \
             moment: {}; afterwards: {}",
            lost.len(),
            percentiles(&mut lost),
            percentiles(&mut after)
        ));
        let slowest = lost.last().expect("some were handed over");
        assert!(*slowest <= FOUND_WITHIN, "{slowest:?}");
        assert!(after[after.len() / 2] < TOLD_WITHIN, "messages come again");
        let call = AcquireCall::new(&locks_in(&shard(victim), "open", 1)[0], TTL, Duration::ZERO);
        let resumed = until("its own shard grants again", async || {
            client.acquire_at(0, &call).await.ok()
        });
        let resumed = resumed.await;
        client.release_at(0, &resumed).await.expect("it is held");
    }
}

/// Every node hears every message of every other one.
#[tokio::test(flavor = "multi_thread")]
async fn each_message_is_told_once() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let mut cluster = ClusterDeployment::start(quick()).await;
    let seeds = (0..SHARDS).map(|index| address(cluster.addr(index)));
    let config = RedisConfig {
        key_prefix: KEY_PREFIX.to_owned(),
        deployment_key: Some(DeploymentKey::random()),
        trust_empty_store: true,
        ..RedisConfig::at(Place::Cluster(seeds.collect()))
    };
    let (broker, scripts) = (BrokerId::random(), Scripts::standard());
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let store = RedisStore::start(config, broker, scripts, &tasks, stop.clone()).await;
    let store = store.expect("the store is fit");
    let (sender, mut events) = mpsc::unbounded_channel();
    store.listen(Arc::new(move |event| drop(sender.send(event))));
    until("it listens somewhere", async || {
        let mut listeners = 0;
        for index in 0..cluster.count() {
            listeners += channels(&mut cluster.connect(index).await).await;
        }
        (listeners == 1).then_some(())
    })
    .await;
    let all = tell_all(&cluster, broker, "before").await;
    assert_eq!(heard(&mut events, all.len()).await, all, "each once");

    let first = (0..SHARDS).min_by_key(|master| cluster.addr(*master));
    let first = first.expect("there are masters");
    let slot = *shard(first).start();
    cluster.kill(first).await;
    until("the next node is listened to", async || {
        (events.try_recv() == Ok(Event::Resync)).then_some(())
    })
    .await;
    cluster.promoted(slot, first).await;
    sleep(SETTLED).await;
    while events.try_recv().is_ok() {}
    let all = tell_all(&cluster, broker, "after").await;
    assert_eq!(heard(&mut events, all.len()).await, all, "each once");
    figures(&format!(
        "cluster_hand_off: {MESSAGES} messages from each node, each told once, also after a node had died"
    ));
    stop.cancel();
}

/// Tells the broker of some locks, from every node that runs.
async fn tell_all(cluster: &ClusterDeployment, broker: BrokerId, what: &str) -> BTreeSet<String> {
    let channel = format!("{KEY_PREFIX}b:{broker}");
    let mut all = BTreeSet::new();
    let running = (0..cluster.count()).filter(|index| cluster.server(*index).answers());
    for index in running {
        let mut raw = cluster.connect(index).await;
        for number in 0..MESSAGES {
            let name = format!("{what}-{index}-{number}");
            let message = format!("{KEY_PREFIX}{{default:{name}}}");
            raw.must(&["PUBLISH", &channel, &message]).await;
            all.insert(format!("default/{name}"));
        }
    }
    all
}

/// The locks that a broker is told of, so many at least, and all that come soon after.
async fn heard(events: &mut UnboundedReceiver<Event>, count: usize) -> BTreeSet<String> {
    let mut heard = BTreeSet::new();
    loop {
        let patience = if heard.len() < count {
            TOLD_LIMIT
        } else {
            SETTLED
        };
        match timeout(patience, events.recv()).await {
            Ok(Some(Event::Rejoin(lock))) => {
                assert!(heard.insert(lock.to_string()), "told twice: {lock}");
            }
            Ok(Some(Event::Resync)) => {}
            Ok(Some(event)) => panic!("nobody told {event:?}"),
            Ok(None) | Err(_) => return heard,
        }
    }
}

/// A holder, and those who wait behind.
struct Line {
    held: Held,
    waiters: Vec<Open>,
}

impl Line {
    /// Each that is granted the lock gives it to the next at once.
    async fn go(self, client: &Client) -> Vec<HandOff> {
        let mut all = Vec::new();
        let mut held = self.held;
        for (place, waiter) in self.waiters.into_iter().enumerate() {
            let sent = boottime();
            let released = client.release_at(place, &held).await;
            assert!(!released.expect("it is held").already_released);
            let granted = waiter.await.expect("a call does not panic");
            held = granted.expect("the next in line gets it");
            all.push(HandOff {
                token: held.token(),
                took: boottime() - sent,
            });
        }
        let released = client.release_at(all.len(), &held).await;
        released.expect("the last gives it back");
        all
    }
}

async fn go_through(client: &Client, name: &str) -> Vec<HandOff> {
    line_up(client, name).await.go(client).await
}

/// Somebody holds the lock at the first broker, and others wait at the brokers in turn, none at the
/// broker of the one before it.
async fn line_up(client: &Client, name: &str) -> Line {
    let call = AcquireCall::new(name, TTL, Duration::ZERO);
    let held = client.acquire_at(0, &call).await.expect("it is free");
    let mut waiters = Vec::new();
    for place in 0..IN_LINE {
        let call = AcquireCall::new(name, TTL, WAIT);
        waiters.push(client.open_at(place + 1, &call));
        client.queued_at(0, name, place + 1).await;
    }
    Line { held, waiters }
}

fn percentiles(took: &mut [Duration]) -> String {
    took.sort_unstable();
    let at = |percent: usize| took[(took.len() * percent / 100).min(took.len() - 1)].as_micros();
    format!("p50={} us p99={} us max={} us", at(50), at(99), at(100))
}
