//! Clusters that change under running brokers, and brokers that start in the middle of it.

use std::time::Duration;

use futures::future::join_all;
use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    broker_process::{BrokerProcess, KEY_PREFIX},
    client::{AcquireCall, Client, Held},
    clock::boottime,
    cluster::{ClusterDeployment, ClusterOptions, Migration, SLOTS, tag_in},
    cluster_site::{
        ClusterSite, QUARANTINE, SHARDS, TTL, locks_in, locks_in_each, quick, shard, slot_of_lock,
    },
    cluster_work::{Answer, Attempt, Lock, Stay, Verb, Work},
    scale::figures,
    status::reason,
    until::until,
};
use tokio::time::sleep;

const CALLERS: usize = 4;
const HOT: usize = 3;
const CALM: Duration = Duration::from_secs(1);
/// How long a slot stays half moved, or unserved.
const HALF_WAY: Duration = Duration::from_secs(2);
const PROMPT: Duration = Duration::from_secs(1);
/// The broker answers in time, and the answer takes its time to get here.
const SLACK: Duration = Duration::from_millis(250);
const RESUMED_WITHIN: Duration = Duration::from_secs(5);
/// A node that is asked for a slot which it does not serve may cost a broker its connection.
const NOTICED: Duration = Duration::from_secs(2);
const SLOT: u16 = 4_000;
/// Groups of locks: in other shards, in the slot, and in other slots of its shard.
const OTHERS: usize = 0;
const IN_SLOT: usize = 1;
const BESIDE: usize = 2;

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_moves_to_an_unknown_master_keeps_its_leases() {
    let site = ClusterSite::start(ClusterOptions::default(), 2).await;
    let work = Work::new(locks(), &site.addrs());
    let replica = site.cluster.replicas_of(0).await[0];
    let moves = async {
        site.cluster.make_empty_master(replica).await;
        let mut migration = site.cluster.begin_migration(SLOT, replica).await;
        sleep(CALM).await;
        let from = boottime();
        migration.move_all().await;
        sleep(HALF_WAY).await;
        migration.finish().await;
        let known = boottime();
        assert_eq!(site.cluster.master_of(SLOT).await, replica);
        let again = granted(&work, known).await;
        work.stop.cancel();
        (from, known, again)
    };
    let ((from, known, again), lost) = work_on(&work, moves).await;
    let in_slot = work.tally(|attempt| attempt.group == IN_SLOT && attempt.ended > from);
    figures(&format!(
        "cluster_changes new master: grants {} ms after it was given the slot (Q={} ms); {in_slot}",
        (again - known).as_millis(),
        QUARANTINE.as_millis()
    ));
    assert!(lost.is_empty(), "{lost:?}");
    assert!(again - known <= QUARANTINE + RESUMED_WITHIN);
    assert!(
        again - from >= QUARANTINE,
        "grants before the quarantine is over"
    );
    let in_vain = work.tally(|attempt| {
        let is_renewal = attempt.group == IN_SLOT && attempt.verb == Verb::Renew;
        // The new master renews once the former one says that it has given the slot away.
        let is_early = attempt.begun <= known + RESUMED_WITHIN;
        is_renewal
            && match attempt.answer {
                Answer::Done => false,
                Answer::Refused(ErrorReason::StoreRecovering) => !is_early,
                Answer::Refused(_) | Answer::Broken => attempt.ended > from,
            }
    });
    let in_vain = in_vain.count(|_, _| true);
    assert_eq!(in_vain, 0, "renewals are asked for where the lock is");
    undisturbed(&work, |attempt| attempt.group != IN_SLOT);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_fail_over_loses_no_lease() {
    let site = ClusterSite::start(ClusterOptions::default(), 2).await;
    let work = Work::new(locks(), &site.addrs());
    let moves = async {
        sleep(CALM).await;
        let from = boottime();
        let replica = site.cluster.replicas_of(0).await[0];
        site.cluster.fail_over(replica).await;
        assert_eq!(site.cluster.promoted(SLOT, 0).await, replica);
        let known = boottime();
        let again = granted(&work, known).await;
        work.stop.cancel();
        (from, known, again)
    };
    let ((from, known, again), lost) = work_on(&work, moves).await;
    let hit = work.tally(|attempt| attempt.group != OTHERS && attempt.ended > from);
    figures(&format!(
        "cluster_changes CLUSTER FAILOVER: took {} ms, grants {} ms later (Q={} ms); {hit}",
        (known - from).as_millis(),
        (again - known).as_millis(),
        QUARANTINE.as_millis()
    ));
    assert!(lost.is_empty(), "{lost:?}");
    assert!(again - known <= QUARANTINE + RESUMED_WITHIN);
    assert!(
        again - from >= QUARANTINE,
        "grants before the quarantine is over"
    );
    undisturbed(&work, |attempt| attempt.group == OTHERS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_dies_with_half_a_slot_gives_no_lock_twice() {
    let mut site = ClusterSite::start(quick(), 2).await;
    let work = Work::new(locks(), &site.addrs());
    let moves = async {
        sleep(CALM).await;
        let mut migration = site.cluster.begin_migration(SLOT, 1).await;
        // Of the keys there, a record each of what callers use and of what is kept.
        let of_slot = work.locks.iter().filter(|lock| lock.group == IN_SLOT);
        let moving = of_slot.step_by(2);
        let keys = moving.map(|lock| format!("{KEY_PREFIX}{{default:{}}}", lock.name));
        migration.move_keys(&keys.collect::<Vec<_>>()).await;
        drop(migration);
        let from = boottime();
        site.cluster.kill(0).await;
        // The master to which the slot was to move does not learn who has it now.
        site.cluster.promoted(SLOT + 1, 0).await;
        let known = boottime();
        let again = granted(&work, known).await;
        sleep(CALM).await;
        work.stop.cancel();
        (from, known, again)
    };
    let ((from, known, again), lost) = work_on(&work, moves).await;
    let in_slot = work.tally(|attempt| attempt.group == IN_SLOT && attempt.ended > from);
    figures(&format!(
        "cluster_changes half a slot: promoted after {} ms, grants {} ms later (Q={} ms), leases lost={lost:?}; {in_slot}",
        (known - from).as_millis(),
        (again - known).as_millis(),
        QUARANTINE.as_millis()
    ));
    // Nobody finds again what was with the other master.
    assert!(lost.iter().any(|stay| stay.group == IN_SLOT), "{lost:?}");
    assert!(again - known <= QUARANTINE + RESUMED_WITHIN);
    assert!(
        again - from >= QUARANTINE,
        "grants before the quarantine is over"
    );
    undisturbed(&work, |attempt| attempt.group == OTHERS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_nobody_serves_costs_no_other() {
    let site = ClusterSite::start(ClusterOptions::default(), 2).await;
    let work = Work::new(locks(), &site.addrs());
    let slot = SLOT.to_string();
    let moves = async {
        sleep(CALM).await;
        let from = boottime();
        for index in 0..site.cluster.count() {
            let mut raw = site.cluster.server(index).connect().await;
            raw.must(&["CLUSTER", "DELSLOTS", &slot]).await;
        }
        sleep(2 * HALF_WAY).await;
        let back = boottime();
        let mut raw = site.cluster.connect(0).await;
        raw.must(&["CLUSTER", "ADDSLOTS", &slot]).await;
        let again = granted(&work, back).await;
        work.stop.cancel();
        (from, back, again)
    };
    let ((from, back, again), _) = work_on(&work, moves).await;
    let noticed = from + NOTICED;
    let unserved = work.tally(|attempt| {
        attempt.group == IN_SLOT && attempt.begun > noticed && attempt.ended < back
    });
    let beside = work.tally(|attempt| attempt.group == BESIDE);
    figures(&format!(
        "cluster_changes unserved slot: {unserved}; beside it: {beside}; served again: grants after {} ms",
        (again - back).as_millis()
    ));
    let unavailable = |_, answer| answer == Answer::Refused(ErrorReason::StoreUnavailable);
    assert!(unserved.failed() > 0 && unserved.done() == 0);
    assert_eq!(unserved.count(unavailable), unserved.failed());
    let slowest = unserved.slowest;
    assert!(slowest <= PROMPT + SLACK, "{slowest:?}");
    assert!(again - back <= QUARANTINE + RESUMED_WITHIN);
    undisturbed(&work, |attempt| attempt.group == OTHERS);
    undisturbed(&work, |attempt| {
        attempt.group == BESIDE && attempt.begun > noticed
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_starts_while_a_slot_is_half_moved_serves_both_halves() {
    let mut site = ClusterSite::start(ClusterOptions::default(), 1).await;
    let client = Client::new("holder", &site.addrs(), 0);
    let halves = [(SLOT, false), (SLOT + 1, true)]
        .map(|(slot, with_era)| half_moved(&site.cluster, &client, slot, with_era));
    let (mut leases, mut migrations) = (Vec::new(), Vec::new());
    for (of_slot, migration) in join_all(halves).await {
        leases.extend(of_slot);
        migrations.push(migration);
    }
    let second = BrokerProcess::start(&site.options).await;
    let late = Client::new("holder", &[second.addr()], 0);
    for HalfMoved { held, .. } in &mut leases {
        let renewed = late.renew_at(0, held).await.expect("it is where it is");
        assert_eq!(renewed.token(), held.token());
        *held = renewed;
    }
    // A repeat is a grant. Only the slot's master grants, and only while it has the record and the era.
    for HalfMoved { call, held, stays } in &leases {
        match late.acquire_at(0, call).await {
            Ok(again) => {
                assert!(*stays, "granted without its era: {call:?}");
                assert_eq!(again.token(), held.token());
            }
            Err(refused) => {
                assert!(!*stays, "{refused}: {call:?}");
                assert_eq!(reason(&refused), Some(ErrorReason::StoreRecovering));
            }
        }
    }
    join_all(migrations.into_iter().map(async |mut migration| {
        migration.move_all().await;
        migration.finish().await;
    }))
    .await;
    for HalfMoved { held, .. } in &leases {
        let released = late.release_at(0, held).await.expect("it is held");
        assert!(!released.already_released);
    }
    site.brokers.push(second);
}

/// A lease in a slot of which one half is with its next master.
struct HalfMoved {
    call: AcquireCall,
    held: Held,
    /// Its record and the era of its slot are both with the slot's master still.
    stays: bool,
}

/// Takes four locks in a slot, and moves the records of two of them to the second master, with the era or without.
async fn half_moved<'a>(
    cluster: &'a ClusterDeployment,
    client: &Client,
    slot: u16,
    with_era: bool,
) -> (Vec<HalfMoved>, Migration<'a>) {
    let names = locks_in_each(&[slot], "half", 4).remove(0);
    let (moved, _) = names.split_at(names.len() / 2);
    let mut leases = Vec::new();
    for name in &names {
        let call = AcquireCall::new(name, TTL, Duration::ZERO);
        let held = client.acquire_at(0, &call).await.expect("it is free");
        leases.push(HalfMoved {
            call,
            held,
            stays: !with_era && !moved.contains(name),
        });
    }
    let records = moved
        .iter()
        .map(|name| format!("{KEY_PREFIX}{{default:{name}}}"));
    let era = with_era.then(|| format!("{KEY_PREFIX}era{}", tag_in(slot)));
    let keys: Vec<_> = records.chain(era).collect();
    let mut migration = cluster.begin_migration(slot, 1).await;
    migration.move_keys(&keys).await;
    let left = migration.keys_left().await;
    assert!(keys.iter().all(|key| !left.contains(key)), "{left:?}");
    (leases, migration)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_starts_while_a_shard_is_dead_serves_the_others() {
    let alone = ClusterOptions {
        replicas: 0,
        ..quick()
    };
    let mut site = ClusterSite::start(alone, 0).await;
    // The first address in the URL answers nobody.
    site.cluster.kill(0).await;
    site.cluster.failed(0).await;
    let began = boottime();
    site.add_brokers(1).await;
    let client = Client::new("late", &site.addrs(), 0);
    for name in (1..SHARDS).flat_map(|index| locks_in(&shard(index), "late", HOT)) {
        let call = AcquireCall::new(&name, TTL, Duration::ZERO);
        client
            .acquire_at(0, &call)
            .await
            .expect("its shard is well");
    }
    let served = boottime() - began;
    for name in locks_in(&shard(0), "late", HOT) {
        let call = AcquireCall::new(&name, TTL, Duration::ZERO);
        let asked = boottime();
        let status = client.acquire_at(0, &call).await;
        let status = status.expect_err("its shard is dead");
        assert_eq!(
            reason(&status),
            Some(ErrorReason::StoreUnavailable),
            "{status}"
        );
        assert!(boottime() - asked <= PROMPT + SLACK);
    }
    let dead = site.cluster.addr(0).to_string();
    let log = site.brokers[0].log();
    assert!(
        log.contains(&dead),
        "it says which slots are missing: {log}"
    );
    figures(&format!(
        "cluster_changes start without a shard: others served after {} ms",
        served.as_millis()
    ));
}

/// Three groups of locks.
fn locks() -> Vec<Lock> {
    let of_slot = locks_in_each(&[SLOT], "slot", HOT + 2).remove(0);
    let beside = locks_in(&(SLOT + 1..=SLOTS / 4 + 1_000), "beside", HOT + 2);
    assert!(
        beside
            .iter()
            .all(|name| shard(0).contains(&slot_of_lock(name)))
    );
    let others = locks_in(&(*shard(1).start()..=*shard(2).end()), "others", HOT + 2);
    let groups = [(OTHERS, others), (IN_SLOT, of_slot), (BESIDE, beside)];
    let locks = groups.into_iter().flat_map(|(group, names)| {
        let of_group = move |name| Lock { name, group };
        names.into_iter().map(of_group)
    });
    locks.collect()
}

/// Each group has callers, and two leases that are kept; which of those were lost.
async fn work_on<T>(work: &Work, moves: impl Future<Output = T>) -> (T, Vec<Stay>) {
    let each = HOT + 2;
    let groups: Vec<Vec<usize>> = (0..work.locks.len() / each)
        .map(|group| (group * each..(group + 1) * each).collect())
        .collect();
    let callers = groups
        .iter()
        .flat_map(|locks| (0..CALLERS).map(move |index| work.call(&locks[..HOT], index)));
    let by_calls = groups.iter().map(|locks| locks[HOT]);
    let by_calls = by_calls.map(|lock| work.keep(lock, lock, &work.stop));
    let on_streams = groups.iter().map(|locks| locks[HOT + 1]);
    let on_streams = on_streams.map(|lock| work.keep_on_stream(lock, lock, &work.stop));
    let (_, by_calls, on_streams, done) = tokio::join!(
        join_all(callers),
        join_all(by_calls),
        join_all(on_streams),
        moves
    );
    let verdict = work.witness.verdict();
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
    let stays = by_calls.into_iter().chain(on_streams);
    (done, stays.filter(|stay| stay.lost.is_some()).collect())
}

/// When a caller was granted a lock of the slot again, after the quarantine.
async fn granted(work: &Work, since: Duration) -> Duration {
    let of_slot = (0..work.locks.len()).find(|lock| work.locks[*lock].group == IN_SLOT);
    let lock = of_slot.expect("it has locks");
    until("grants in the slot", async || {
        work.granted_after(lock, since)
    })
    .await
}

fn undisturbed(work: &Work, which: impl Fn(&Attempt) -> bool) {
    let tally = work.tally(which);
    assert!(tally.done() > 0 && tally.failed() == 0, "{tally}");
    assert!(tally.is_prompt(), "{tally}");
}
