//! Hand-offs between brokers on a cluster, in the order of the queue. They are reported by one
//! message over the cluster bus or on a sharded channel, even if the publishing node dies.

use std::time::Duration;

use futures::future::join_all;
use leasehold_tests::{
    client::unary::{AcquireCall, AcquireHandle, Client, HeldLease},
    clock::boottime,
    cluster::{
        deployment::{ClusterDeployment, ClusterOptions},
        fixture::{
            ClusterFixture, SHARDS, TTL, fast_failover_options, initial_slots_of, lock_names_in,
            slot_of_lock,
        },
    },
    redis::server::RestartData,
    scale::{print_figures, scaled_count},
    until::until,
};
use tokio::{select, time::sleep};

const BROKERS: usize = 3;
/// Number of waiters per queue, two at each broker.
const WAITERS: usize = 2 * BROKERS;
/// Number of concurrent queues.
const AT_ONCE: usize = 3;
const WAIT: Duration = Duration::from_secs(60);
/// Upper bound of one hand-off on a busy machine.
const PROMPT: Duration = Duration::from_secs(1);
/// Upper bound of a typical hand-off by message. A hand-off by touch takes longer.
const NOTIFIED_WITHIN: Duration = Duration::from_millis(200);
const OTHER_SHARD_QUEUES: usize = 6;
/// Validity of a subscription in a slot.
const SUBSCRIBED_AGAIN: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy)]
enum Fault {
    Killed,
    Stopped,
}

/// A hand-off of a lock.
#[derive(Debug, Clone, Copy)]
struct HandOff {
    token: i64,
    /// Time from the release request to the grant.
    took: Duration,
}

/// Command with which brokers publish, as `INFO commandstats` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PublishCommand {
    Publish,
    Spublish,
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_handed_on_in_queue_order() {
    let fixture = ClusterFixture::start(ClusterOptions::default(), BROKERS).await;
    run_queues(&fixture, PublishCommand::Publish).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_handed_on_by_sharded_channels_after_their_slots_moved() {
    let mut fixture = ClusterFixture::uninitialized(fast_failover_options()).await;
    let sharded = ["LEASEHOLD__STORE__SHARDED_PUBSUB", "true"].map(str::to_owned);
    fixture.options.env.push(sharded.into());
    fixture.options.init_store().await;
    fixture.add_brokers(BROKERS).await;
    run_queues(&fixture, PublishCommand::Spublish).await;

    // One slot moves, one moves and returns, and the master of a third one dies.
    let client = Client::new("waiter", &fixture.addrs(), 0);
    let names =
        [0, 1, 2].map(|index| lock_names_in(&initial_slots_of(index), "elsewhere", 1).remove(0));
    join_all(names.iter().map(|name| go_through(&client, name))).await;
    let [goes, returns, _] = [0, 1, 2].map(|index| slot_of_lock(&names[index]));
    move_slot(&fixture.cluster, goes, 1).await;
    move_slot(&fixture.cluster, returns, 2).await;
    move_slot(&fixture.cluster, returns, 1).await;
    fixture.cluster.kill(2).await;
    fixture
        .cluster
        .wait_for_promotion(*initial_slots_of(2).start(), 2)
        .await;
    sleep(SUBSCRIBED_AGAIN).await;
    // Each broker detects the new era by its own rejected call.
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
    print_figures(&format!(
        "cluster_hand_off: sharded, after a slot went, one came back, and a master died: hand_offs={} {}",
        took.len(),
        percentiles(&mut took)
    ));
    for line in gone {
        let mut took: Vec<_> = line.iter().map(|hand_off| hand_off.took).collect();
        took.sort_unstable();
        assert!(took[took.len() / 2] < NOTIFIED_WITHIN, "{took:?}");
    }
}

/// Moves all keys of a slot and then the slot to another master.
async fn move_slot(cluster: &ClusterDeployment, slot: u16, to: usize) {
    let mut migration = cluster.start_migration(slot, to).await;
    migration.move_remaining_keys().await;
    migration.finish().await;
}

/// Runs queues in every shard, one round after the other.
async fn run_queues(fixture: &ClusterFixture, publish_command: PublishCommand) {
    let client = Client::new("waiter", &fixture.addrs(), 0);
    let each = scaled_count(100, 10);
    let shards: Vec<_> = (0..SHARDS)
        .map(|index| lock_names_in(&initial_slots_of(index), "line", each))
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
    print_figures(&format!(
        "cluster_hand_off: {publish_command:?} brokers={BROKERS} lines={} hand_offs={} {} inversions={inversions}",
        each * SHARDS,
        took.len(),
        percentiles(&mut took)
    ));
    assert_eq!((took.len(), inversions), (each * SHARDS * WAITERS, 0));
    // Without messages, every hand-off would wait for a touch.
    assert!(took[took.len() / 2] < NOTIFIED_WITHIN, "messages come");
    let mut used = String::new();
    for index in 0..SHARDS {
        let mut raw = fixture.cluster.connect(index).await;
        used.push_str(raw.must(&["INFO", "commandstats"]).await.text());
    }
    let is_used = ["publish", "spublish"].map(|name| used.contains(&format!("cmdstat_{name}:")));
    let expected =
        [PublishCommand::Publish, PublishCommand::Spublish].map(|one| one == publish_command);
    assert_eq!(is_used, expected, "{used}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_master_does_not_delay_hand_offs_of_others() {
    lose_masters(Fault::Killed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_master_does_not_delay_hand_offs_of_others() {
    lose_masters(Fault::Stopped).await;
}

/// Loses one master after the other, while locks of the other masters are handed from waiter to
/// waiter.
async fn lose_masters(fault: Fault) {
    let mut fixture = ClusterFixture::start(fast_failover_options(), BROKERS).await;
    let client = Client::new("waiter", &fixture.addrs(), 0);
    for victim in 0..scaled_count(SHARDS, 1) {
        let slot = *initial_slots_of(victim).start();
        let others = (0..SHARDS).filter(|other| *other != victim);
        let names: Vec<_> = others
            .flat_map(|other| {
                lock_names_in(
                    &initial_slots_of(other),
                    &format!("lost-{victim}"),
                    OTHER_SHARD_QUEUES,
                )
            })
            .collect();
        // The shard of the last victim recovers slot by slot.
        join_all(names.iter().map(|name| wait_for_grants(&client, name))).await;
        let lines = join_all(names.iter().map(|name| line_up(&client, name))).await;
        let master = fixture.cluster.master_of(slot).await;
        match fault {
            Fault::Killed => fixture.cluster.kill(master).await,
            Fault::Stopped => fixture.cluster.server(master).process().pause().await,
        }
        let gone = join_all(lines.into_iter().map(|line| line.hand_off_all(&client))).await;
        let mut lost: Vec<_> = gone.concat().iter().map(|hand_off| hand_off.took).collect();
        let next = fixture.cluster.wait_for_promotion(slot, master).await;
        let elsewhere = initial_slots_of((victim + 1) % SHARDS);
        let name = lock_names_in(&elsewhere, &format!("after-{victim}"), 1).remove(0);
        wait_for_grants(&client, &name).await;
        let after = go_through(&client, &name).await;
        let mut after: Vec<_> = after.iter().map(|hand_off| hand_off.took).collect();
        match fault {
            Fault::Killed => fixture.cluster.restart(master, RestartData::Kept).await,
            Fault::Stopped => fixture.cluster.server(master).process().resume(),
        }
        fixture.cluster.wait_until_ready().await;
        print_figures(&format!(
            "cluster_hand_off: {fault:?} master {master}, {next} in its place: {} hand-offs of other shards at that \
             moment: {}; afterwards: {}",
            lost.len(),
            percentiles(&mut lost),
            percentiles(&mut after)
        ));
        let slowest = lost.last().expect("some were handed over");
        assert!(*slowest <= PROMPT, "{slowest:?}");
        for took in [&lost, &after] {
            assert!(took[took.len() / 2] < NOTIFIED_WITHIN, "messages come");
        }
    }
}

/// Waits until the slot of a lock grants.
async fn wait_for_grants(client: &Client, name: &str) {
    let call = AcquireCall::new(name, TTL, Duration::ZERO);
    let granted = until("its slot grants", async || {
        client.acquire_at(0, &call).await.ok()
    });
    let granted = granted.await;
    client.release_at(0, &granted).await.expect("it is held");
}

/// A lock's holder and its queue.
struct LockQueue {
    held: HeldLease,
    waiters: Vec<AcquireHandle>,
}

impl LockQueue {
    /// Releases each grant immediately, so that the lock passes through the queue.
    async fn hand_off_all(self, client: &Client) -> Vec<HandOff> {
        let mut all = Vec::new();
        let mut held = self.held;
        for (place, waiter) in self.waiters.into_iter().enumerate() {
            let sent = boottime();
            let released = client.release_at(place, &held).await;
            assert!(!released.expect("it is held").already_released);
            let granted = waiter.await.expect("a call does not panic");
            held = granted.expect("the next waiter gets it");
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
    line_up(client, name).await.hand_off_all(client).await
}

/// Acquires the lock at the first broker and enqueues waiters at the brokers in round-robin order,
/// so that adjacent waiters use different brokers.
async fn line_up(client: &Client, name: &str) -> LockQueue {
    let call = AcquireCall::new(name, TTL, Duration::ZERO);
    let held = client.acquire_at(0, &call).await.expect("it is free");
    let mut waiters = Vec::new();
    for place in 0..WAITERS {
        let call = AcquireCall::new(name, TTL, WAIT);
        let mut waiter = client.start_acquire_at(place + 1, &call);
        select! {
            () = client.wait_for_queue_length_at(0, name, place + 1) => {}
            ended = &mut waiter => panic!("{name}: waiter {place} ended: {ended:?}"),
        }
        waiters.push(waiter);
    }
    LockQueue { held, waiters }
}

fn percentiles(took: &mut [Duration]) -> String {
    took.sort_unstable();
    let at = |percent: usize| took[(took.len() * percent / 100).min(took.len() - 1)].as_micros();
    format!("p50={} us p99={} us max={} us", at(50), at(99), at(100))
}
