//! Locks of a cluster that go from waiter to waiter across brokers: in the order of the line, told by
//! one message over the bus, or on a sharded channel, and also while the node dies that told them.

use std::time::Duration;

use futures::future::join_all;
use leasehold_tests::{
    client::{AcquireCall, Client, Held, Open},
    clock::boottime,
    cluster::{ClusterDeployment, ClusterOptions},
    cluster_site::{ClusterSite, SHARDS, TTL, locks_in, quick, shard, slot_of_lock},
    redis_server::Data,
    scale::{count, figures},
    until::until,
};
use tokio::{select, time::sleep};

const BROKERS: usize = 3;
/// Each broker twice.
const IN_LINE: usize = 2 * BROKERS;
/// Lines that go on at the same time.
const AT_ONCE: usize = 3;
const WAIT: Duration = Duration::from_secs(60);
/// How long one may take on a busy machine.
const PROMPT: Duration = Duration::from_secs(1);
/// How long most take whose message comes: a touch would come later.
const TOLD_WITHIN: Duration = Duration::from_millis(200);
const OF_OTHERS: usize = 6;
/// A subscription in a slot counts for 10 s.
const SUBSCRIBED_AGAIN: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy)]
enum Fault {
    Killed,
    Stopped,
}

/// One lock that went on.
#[derive(Debug, Clone, Copy)]
struct HandOff {
    token: i64,
    /// From the sending of the release to the grant.
    took: Duration,
}

/// How brokers tell each other, as Redis names it in its counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Publish,
    Spublish,
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_go_on_in_the_order_of_their_lines() {
    let site = ClusterSite::start(ClusterOptions::default(), BROKERS).await;
    go_on(&site, Told::Publish).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_go_on_by_sharded_channels_wherever_their_slots_go() {
    let mut site = ClusterSite::unprepared(quick()).await;
    let sharded = ["LEASEHOLD__STORE__SHARDED_PUBSUB", "true"].map(str::to_owned);
    site.options.env.push(sharded.into());
    site.options.init_store().await;
    site.add_brokers(BROKERS).await;
    go_on(&site, Told::Spublish).await;

    // One slot goes, one goes and comes back, and the master of a third dies.
    let client = Client::new("waiter", &site.addrs(), 0);
    let names = [0, 1, 2].map(|index| locks_in(&shard(index), "elsewhere", 1).remove(0));
    join_all(names.iter().map(|name| go_through(&client, name))).await;
    let [goes, returns, _] = [0, 1, 2].map(|index| slot_of_lock(&names[index]));
    move_slot(&site.cluster, goes, 1).await;
    move_slot(&site.cluster, returns, 2).await;
    move_slot(&site.cluster, returns, 1).await;
    site.cluster.kill(2).await;
    site.cluster.promoted(*shard(2).start(), 2).await;
    sleep(SUBSCRIBED_AGAIN).await;
    // Each broker learns for itself that another era is in force, by a call that is refused.
    for name in &names {
        for at in 0..BROKERS {
            let call = AcquireCall::new(name, TTL, Duration::ZERO);
            let free = until("its slot grants again", async || {
                client.acquire_at(at, &call).await.ok()
            });
            let free = free.await;
            client.release_at(at, &free).await.expect("it is held");
        }
    }
    let gone = join_all(names.iter().map(|name| go_through(&client, name))).await;
    let mut took: Vec<_> = gone.concat().iter().map(|hand_off| hand_off.took).collect();
    figures(&format!(
        "cluster_hand_off: sharded, after a slot went, one came back, and a master died: hand_offs={} {}",
        took.len(),
        percentiles(&mut took)
    ));
    for line in gone {
        let mut took: Vec<_> = line.iter().map(|hand_off| hand_off.took).collect();
        took.sort_unstable();
        assert!(took[took.len() / 2] < TOLD_WITHIN, "{took:?}");
    }
}

/// Gives all keys of a slot and then the slot to another master.
async fn move_slot(cluster: &ClusterDeployment, slot: u16, to: usize) {
    let mut migration = cluster.begin_migration(slot, to).await;
    migration.move_all().await;
    migration.finish().await;
}

/// Lines in every shard, one after the other.
async fn go_on(site: &ClusterSite, told: Told) {
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
        "cluster_hand_off: {told:?} brokers={BROKERS} lines={} hand_offs={} {} inversions={inversions}",
        each * SHARDS,
        took.len(),
        percentiles(&mut took)
    ));
    assert_eq!((took.len(), inversions), (each * SHARDS * IN_LINE, 0));
    // Without messages each would wait for a touch.
    assert!(took[took.len() / 2] < TOLD_WITHIN, "messages come");
    let mut used = String::new();
    for index in 0..SHARDS {
        let mut raw = site.cluster.connect(index).await;
        used.push_str(raw.must(&["INFO", "commandstats"]).await.text());
    }
    let is_used = ["publish", "spublish"].map(|name| used.contains(&format!("cmdstat_{name}:")));
    let expected = [Told::Publish, Told::Spublish].map(|one| one == told);
    assert_eq!(is_used, expected, "{used}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_master_holds_up_no_hand_off_of_others() {
    lose_masters(Fault::Killed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_stands_still_holds_up_no_hand_off_of_others() {
    lose_masters(Fault::Stopped).await;
}

/// One master after the other, while the locks of all others go on in their lines.
async fn lose_masters(fault: Fault) {
    let mut site = ClusterSite::start(quick(), BROKERS).await;
    let client = Client::new("waiter", &site.addrs(), 0);
    for victim in 0..count(SHARDS, 1) {
        if victim > 0 {
            grants_again(&client, victim - 1).await;
        }
        let slot = *shard(victim).start();
        let others = (0..SHARDS).filter(|other| *other != victim);
        let names: Vec<_> = others
            .flat_map(|other| locks_in(&shard(other), &format!("lost-{victim}"), OF_OTHERS))
            .collect();
        let lines = join_all(names.iter().map(|name| line_up(&client, name))).await;
        let master = site.cluster.master_of(slot).await;
        match fault {
            Fault::Killed => site.cluster.kill(master).await,
            Fault::Stopped => site.cluster.server(master).process().pause().await,
        }
        let gone = join_all(lines.into_iter().map(|line| line.go(&client))).await;
        let mut lost: Vec<_> = gone.concat().iter().map(|hand_off| hand_off.took).collect();
        let next = site.cluster.promoted(slot, master).await;
        let elsewhere = shard((victim + 1) % SHARDS);
        let name = locks_in(&elsewhere, &format!("after-{victim}"), 1).remove(0);
        let after = go_through(&client, &name).await;
        let mut after: Vec<_> = after.iter().map(|hand_off| hand_off.took).collect();
        match fault {
            Fault::Killed => site.cluster.restart(master, Data::Kept).await,
            Fault::Stopped => site.cluster.server(master).process().resume(),
        }
        site.cluster.ready().await;
        figures(&format!(
            "cluster_hand_off: {fault:?} master {master}, {next} in its place: {} hand-offs of other shards at that \
             moment: {}; afterwards: {}",
            lost.len(),
            percentiles(&mut lost),
            percentiles(&mut after)
        ));
        let slowest = lost.last().expect("some were handed over");
        assert!(*slowest <= PROMPT, "{slowest:?}");
        for took in [&lost, &after] {
            assert!(took[took.len() / 2] < TOLD_WITHIN, "messages come");
        }
    }
}

/// Returns once a shard grants that had lost its master.
async fn grants_again(client: &Client, index: usize) {
    let call = AcquireCall::new(&locks_in(&shard(index), "open", 1)[0], TTL, Duration::ZERO);
    let resumed = until("its own shard grants again", async || {
        client.acquire_at(0, &call).await.ok()
    });
    let resumed = resumed.await;
    client.release_at(0, &resumed).await.expect("it is held");
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
        let mut waiter = client.open_at(place + 1, &call);
        select! {
            () = client.queued_at(0, name, place + 1) => {}
            ended = &mut waiter => panic!("{name}: waiter {place} ended: {ended:?}"),
        }
        waiters.push(waiter);
    }
    Line { held, waiters }
}

fn percentiles(took: &mut [Duration]) -> String {
    took.sort_unstable();
    let at = |percent: usize| took[(took.len() * percent / 100).min(took.len() - 1)].as_micros();
    format!("p50={} us p99={} us max={} us", at(50), at(99), at(100))
}
