//! Changes of a cluster under running brokers, and brokers that start during a change.

use std::time::Duration;

use futures::future::join_all;
use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    broker::process::{BrokerProcess, KEY_PREFIX},
    client::unary::{AcquireCall, Client, HeldLease},
    clock::boottime,
    cluster::{
        deployment::{ClusterDeployment, ClusterOptions, Migration, SLOTS, hash_tag_for},
        fixture::{
            ClusterFixture, QUARANTINE, SHARDS, TTL, fast_failover_options, initial_slots_of,
            lock_names_in, lock_names_in_each, slot_of_lock,
        },
        workload::{Attempt, CallKind, CallResult, Lock, LongHold, Workload},
    },
    scale::print_figures,
    status::error_reason,
    until::until,
};
use tokio::time::sleep;

const CALLERS: usize = 4;
const HOT: usize = 3;
const QUIET_PERIOD: Duration = Duration::from_secs(1);
/// Time for which a slot stays partly migrated, or unserved.
const HALF_WAY: Duration = Duration::from_secs(2);
const PROMPT: Duration = Duration::from_secs(1);
/// Time for the response to travel, which the broker's time limit does not include.
const SLACK: Duration = Duration::from_millis(250);
const RESUMED_WITHIN: Duration = Duration::from_secs(5);
/// Tolerance after a fault. A node that receives a command for a slot that it does not serve may
/// lose the broker's connection.
const NOTICED: Duration = Duration::from_secs(2);
const SLOT: u16 = 4_000;
/// Groups of locks: in other shards, in the slot, and in other slots of its shard.
const OTHERS: usize = 0;
const IN_SLOT: usize = 1;
const BESIDE: usize = 2;

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_moves_to_an_unknown_master_keeps_its_leases() {
    let fixture = ClusterFixture::start(ClusterOptions::default(), 2).await;
    let work = Workload::new(locks(), &fixture.addrs());
    let replica = fixture.cluster.replicas_of(0).await[0];
    let moves = async {
        fixture.cluster.make_empty_master(replica).await;
        let mut migration = fixture.cluster.start_migration(SLOT, replica).await;
        sleep(QUIET_PERIOD).await;
        let from = boottime();
        migration.move_remaining_keys().await;
        sleep(HALF_WAY).await;
        migration.finish().await;
        let known = boottime();
        assert_eq!(fixture.cluster.master_of(SLOT).await, replica);
        let again = granted(&work, known).await;
        work.stop.cancel();
        (from, known, again)
    };
    let ((from, known, again), lost) = run_workload(&work, moves).await;
    let in_slot =
        work.count_attempts(|attempt| attempt.group == IN_SLOT && attempt.ended_at > from);
    print_figures(&format!(
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
    let in_vain = work.count_attempts(|attempt| {
        let is_renewal = attempt.group == IN_SLOT && attempt.kind == CallKind::Renew;
        // The new master renews after the former one has confirmed that it no longer serves the
        // slot.
        let is_early = attempt.started_at <= known + RESUMED_WITHIN;
        is_renewal
            && match attempt.result {
                CallResult::Succeeded => false,
                CallResult::Rejected(ErrorReason::StoreRecovering) => !is_early,
                CallResult::Rejected(_) | CallResult::NoReply => attempt.ended_at > from,
            }
    });
    let in_vain = in_vain.count(|_, _| true);
    assert_eq!(in_vain, 0, "renewals are asked for where the lock is");
    assert_undisturbed(&work, |attempt| attempt.group != IN_SLOT);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_fail_over_loses_no_lease() {
    let fixture = ClusterFixture::start(ClusterOptions::default(), 2).await;
    let work = Workload::new(locks(), &fixture.addrs());
    let moves = async {
        sleep(QUIET_PERIOD).await;
        let from = boottime();
        let replica = fixture.cluster.replicas_of(0).await[0];
        fixture.cluster.start_failover(replica).await;
        assert_eq!(fixture.cluster.wait_for_promotion(SLOT, 0).await, replica);
        let known = boottime();
        let again = granted(&work, known).await;
        work.stop.cancel();
        (from, known, again)
    };
    let ((from, known, again), lost) = run_workload(&work, moves).await;
    let hit = work.count_attempts(|attempt| attempt.group != OTHERS && attempt.ended_at > from);
    print_figures(&format!(
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
    assert_undisturbed(&work, |attempt| attempt.group == OTHERS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_dies_with_half_a_slot_gives_no_lock_twice() {
    let mut fixture = ClusterFixture::start(fast_failover_options(), 2).await;
    let work = Workload::new(locks(), &fixture.addrs());
    let moves = async {
        sleep(QUIET_PERIOD).await;
        let mut migration = fixture.cluster.start_migration(SLOT, 1).await;
        // Half of the records are moved: of a lock that callers use, and of a lease that is
        // renewed.
        let of_slot = work.locks.iter().filter(|lock| lock.group == IN_SLOT);
        let moving = of_slot.step_by(2);
        let keys = moving.map(|lock| format!("{KEY_PREFIX}{{default:{}}}", lock.name));
        migration.move_keys(&keys.collect::<Vec<_>>()).await;
        drop(migration);
        // MIGRATE deletes the keys of the source asynchronously on its replica, which would
        // otherwise still have the leases.
        let mut source = fixture.cluster.connect(0).await;
        source.must(&["WAIT", "1", "10000"]).await;
        let from = boottime();
        fixture.cluster.kill(0).await;
        // The target of the migration is not informed about the new master of the slot.
        fixture.cluster.wait_for_promotion(SLOT + 1, 0).await;
        let known = boottime();
        let again = granted(&work, known).await;
        sleep(QUIET_PERIOD).await;
        work.stop.cancel();
        (from, known, again)
    };
    let ((from, known, again), lost) = run_workload(&work, moves).await;
    let in_slot =
        work.count_attempts(|attempt| attempt.group == IN_SLOT && attempt.ended_at > from);
    print_figures(&format!(
        "cluster_changes half a slot: promoted after {} ms, grants {} ms later (Q={} ms), leases lost={lost:?}; {in_slot}",
        (known - from).as_millis(),
        (again - known).as_millis(),
        QUARANTINE.as_millis()
    ));
    // The records on the target are lost.
    assert!(lost.iter().any(|hold| hold.group == IN_SLOT), "{lost:?}");
    assert!(again - known <= QUARANTINE + RESUMED_WITHIN);
    assert!(
        again - from >= QUARANTINE,
        "grants before the quarantine is over"
    );
    assert_undisturbed(&work, |attempt| attempt.group == OTHERS);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unserved_slot_does_not_affect_other_slots() {
    let fixture = ClusterFixture::start(ClusterOptions::default(), 2).await;
    let work = Workload::new(locks(), &fixture.addrs());
    let slot = SLOT.to_string();
    let moves = async {
        sleep(QUIET_PERIOD).await;
        let from = boottime();
        for index in 0..fixture.cluster.count() {
            let mut raw = fixture.cluster.server(index).connect().await;
            raw.must(&["CLUSTER", "DELSLOTS", &slot]).await;
        }
        sleep(2 * HALF_WAY).await;
        let back = boottime();
        let mut raw = fixture.cluster.connect(0).await;
        raw.must(&["CLUSTER", "ADDSLOTS", &slot]).await;
        let again = granted(&work, back).await;
        work.stop.cancel();
        (from, back, again)
    };
    let ((from, back, again), _) = run_workload(&work, moves).await;
    let noticed = from + NOTICED;
    let unserved = work.count_attempts(|attempt| {
        attempt.group == IN_SLOT && attempt.started_at > noticed && attempt.ended_at < back
    });
    let beside = work.count_attempts(|attempt| attempt.group == BESIDE);
    print_figures(&format!(
        "cluster_changes unserved slot: {unserved}; beside it: {beside}; served again: grants after {} ms",
        (again - back).as_millis()
    ));
    let unavailable = |_, answer| answer == CallResult::Rejected(ErrorReason::StoreUnavailable);
    assert!(unserved.failed() > 0 && unserved.succeeded() == 0);
    assert_eq!(unserved.count(unavailable), unserved.failed());
    let slowest = unserved.slowest;
    assert!(slowest <= PROMPT + SLACK, "{slowest:?}");
    assert!(again - back <= QUARANTINE + RESUMED_WITHIN);
    assert_undisturbed(&work, |attempt| attempt.group == OTHERS);
    assert_undisturbed(&work, |attempt| {
        attempt.group == BESIDE && attempt.started_at > noticed
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_starts_while_a_slot_is_half_moved_serves_both_halves() {
    let mut fixture = ClusterFixture::start(ClusterOptions::default(), 1).await;
    let client = Client::new("holder", &fixture.addrs(), 0);
    let halves = [(SLOT, false), (SLOT + 1, true)]
        .map(|(slot, with_era)| move_half(&fixture.cluster, &client, slot, with_era));
    let (mut leases, mut migrations) = (Vec::new(), Vec::new());
    for (of_slot, migration) in join_all(halves).await {
        leases.extend(of_slot);
        migrations.push(migration);
    }
    let second = BrokerProcess::start(&fixture.options).await;
    let late = Client::new("holder", &[second.addr()], 0);
    for HalfMoved { held, .. } in &mut leases {
        let renewed = late.renew_at(0, held).await.expect("it is where it is");
        assert_eq!(renewed.token(), held.token());
        *held = renewed;
    }
    // A repeat is a grant. Only the slot's master grants, and only while it has the record and the
    // era.
    for HalfMoved { call, held, stays } in &leases {
        match late.acquire_at(0, call).await {
            Ok(again) => {
                assert!(*stays, "granted without its era: {call:?}");
                assert_eq!(again.token(), held.token());
            }
            Err(refused) => {
                assert!(!*stays, "{refused}: {call:?}");
                assert_eq!(error_reason(&refused), Some(ErrorReason::StoreRecovering));
            }
        }
    }
    join_all(migrations.into_iter().map(async |mut migration| {
        migration.move_remaining_keys().await;
        migration.finish().await;
    }))
    .await;
    for HalfMoved { held, .. } in &leases {
        let released = late.release_at(0, held).await.expect("it is held");
        assert!(!released.already_released);
    }
    fixture.brokers.push(second);
}

/// A lease in a partly migrated slot.
struct HalfMoved {
    call: AcquireCall,
    held: HeldLease,
    /// True if the slot's master still has both the record and the era of the slot.
    stays: bool,
}

/// Acquires four locks in a slot and moves the records of two of them to the second master,
/// optionally with the era.
async fn move_half<'a>(
    cluster: &'a ClusterDeployment,
    client: &Client,
    slot: u16,
    with_era: bool,
) -> (Vec<HalfMoved>, Migration<'a>) {
    let names = lock_names_in_each(&[slot], "half", 4).remove(0);
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
    let era = with_era.then(|| format!("{KEY_PREFIX}era{}", hash_tag_for(slot)));
    let keys: Vec<_> = records.chain(era).collect();
    let mut migration = cluster.start_migration(slot, 1).await;
    migration.move_keys(&keys).await;
    let keys_left = migration.remaining_keys().await;
    assert!(
        keys.iter().all(|key| !keys_left.contains(key)),
        "{keys_left:?}"
    );
    (leases, migration)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_starts_while_a_shard_is_dead_serves_the_others() {
    let alone = ClusterOptions {
        replicas: 0,
        ..fast_failover_options()
    };
    let mut fixture = ClusterFixture::start(alone, 0).await;
    // The first address in the URL does not respond.
    fixture.cluster.kill(0).await;
    fixture.cluster.wait_until_failed(0).await;
    let started_at = boottime();
    fixture.add_brokers(1).await;
    let client = Client::new("late", &fixture.addrs(), 0);
    for name in (1..SHARDS).flat_map(|index| lock_names_in(&initial_slots_of(index), "late", HOT)) {
        let call = AcquireCall::new(&name, TTL, Duration::ZERO);
        client
            .acquire_at(0, &call)
            .await
            .expect("its shard is well");
    }
    let served = boottime() - started_at;
    for name in lock_names_in(&initial_slots_of(0), "late", HOT) {
        let call = AcquireCall::new(&name, TTL, Duration::ZERO);
        let asked_at = boottime();
        let status = client.acquire_at(0, &call).await;
        let status = status.expect_err("its shard is dead");
        assert_eq!(
            error_reason(&status),
            Some(ErrorReason::StoreUnavailable),
            "{status}"
        );
        assert!(boottime() - asked_at <= PROMPT + SLACK);
    }
    let dead = fixture.cluster.addr(0).to_string();
    let log = fixture.brokers[0].log();
    assert!(
        log.contains(&dead),
        "it says which slots are missing: {log}"
    );
    print_figures(&format!(
        "cluster_changes start without a shard: others served after {} ms",
        served.as_millis()
    ));
}

/// Returns the locks of the three groups.
fn locks() -> Vec<Lock> {
    let of_slot = lock_names_in_each(&[SLOT], "slot", HOT + 2).remove(0);
    let beside = lock_names_in(&(SLOT + 1..=SLOTS / 4 + 1_000), "beside", HOT + 2);
    assert!(
        beside
            .iter()
            .all(|name| initial_slots_of(0).contains(&slot_of_lock(name)))
    );
    let others = lock_names_in(
        &(*initial_slots_of(1).start()..=*initial_slots_of(2).end()),
        "others",
        HOT + 2,
    );
    let groups = [(OTHERS, others), (IN_SLOT, of_slot), (BESIDE, beside)];
    let locks = groups.into_iter().flat_map(|(group, names)| {
        let of_group = move |name| Lock { name, group };
        names.into_iter().map(of_group)
    });
    locks.collect()
}

/// Starts callers and two renewed leases per group while `moves` runs. Returns the lost leases.
async fn run_workload<T>(work: &Workload, moves: impl Future<Output = T>) -> (T, Vec<LongHold>) {
    let each = HOT + 2;
    let groups: Vec<Vec<usize>> = (0..work.locks.len() / each)
        .map(|group| (group * each..(group + 1) * each).collect())
        .collect();
    let callers = groups
        .iter()
        .flat_map(|locks| (0..CALLERS).map(move |index| work.run_caller(&locks[..HOT], index)));
    let by_calls = groups.iter().map(|locks| locks[HOT]);
    let by_calls = by_calls.map(|lock| work.hold_unary(lock, lock, &work.stop));
    let on_streams = groups.iter().map(|locks| locks[HOT + 1]);
    let on_streams = on_streams.map(|lock| work.hold_on_stream(lock, lock, &work.stop));
    let (_, by_calls, on_streams, done) = tokio::join!(
        join_all(callers),
        join_all(by_calls),
        join_all(on_streams),
        moves
    );
    let verdict = work.oracle.verdict();
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
    let stays = by_calls.into_iter().chain(on_streams);
    (done, stays.filter(|hold| hold.lost.is_some()).collect())
}

/// Waits until a caller was granted a lock of the slot after `since`, and returns the time of the
/// grant.
async fn granted(work: &Workload, since: Duration) -> Duration {
    let of_slot = (0..work.locks.len()).find(|lock| work.locks[*lock].group == IN_SLOT);
    let lock = of_slot.expect("it has locks");
    until("grants in the slot", async || {
        work.first_grant_after(lock, since)
    })
    .await
}

fn assert_undisturbed(work: &Workload, which: impl Fn(&Attempt) -> bool) {
    let counts = work.count_attempts(which);
    assert!(counts.succeeded() > 0 && counts.failed() == 0, "{counts}");
    assert!(counts.is_prompt(), "{counts}");
}
