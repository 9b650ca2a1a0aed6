//! The scenario that every kind of cluster passes with its brokers, with any host names and any
//! security settings: all masters serve, a slot is migrated, a master is killed.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::{sleep, timeout};

use crate::{
    client::unary::{AcquireCall, Client},
    clock::boottime,
    cluster::{
        fixture::{
            ClusterFixture, QUARANTINE, SHARDS, TTL, initial_slots_of, lock_names_in,
            lock_names_in_each, slot_of_lock,
        },
        workload::{Attempt, CallKind, CallResult, Lock, LongHold, Workload},
    },
    scale::print_figures,
    until::until,
};

/// A slot of the second master, which is migrated to the third.
const MIGRATED_SLOT: u16 = 9_000;
/// The group of the locks in this slot. All other locks are in the group of their shard.
const MIGRATED_GROUP: usize = SHARDS;
/// Number of locks of each group. Callers use all but the last, which is held for the whole
/// scenario.
const LOCKS_PER_GROUP: usize = 3;
const CALLERS_PER_GROUP: usize = 2;
const PHASE_DURATION: Duration = Duration::from_millis(500);
const RESUMED_WITHIN: Duration = Duration::from_secs(5);
/// Time within which a hand-off is received. It is received at once, but the two cores are busy at
/// that time.
const HAND_OFF_RECEIVED_WITHIN: Duration = Duration::from_secs(2);

/// Times of the events of the scenario.
struct ScenarioTimes {
    killed_at: Duration,
    promoted_at: Duration,
    hand_off_latency: Duration,
}

/// Runs the scenario with two brokers, and checks the calls of their clients.
pub async fn run_scenario(fixture: &mut ClusterFixture, what: &str) {
    let work = Workload::new(locks(), &fixture.addrs());
    let groups: Vec<Vec<usize>> = (0..=MIGRATED_GROUP)
        .map(|group| (group * LOCKS_PER_GROUP..(group + 1) * LOCKS_PER_GROUP).collect())
        .collect();
    let callers = groups.iter().flat_map(|locks| {
        let work = &work;
        (0..CALLERS_PER_GROUP)
            .map(move |index| work.run_caller(&locks[..LOCKS_PER_GROUP - 1], index))
    });
    let kept = groups.iter().map(|locks| locks[LOCKS_PER_GROUP - 1]);
    let kept = kept.map(|lock| work.hold_unary(lock, lock, &work.stop));
    let (_, kept, times) = tokio::join!(
        join_all(callers),
        join_all(kept),
        inject_events(fixture, &work)
    );
    // A failover longer than half of a TTL may leave too little time for a renewal.
    let failed_over = times.promoted_at - times.killed_at;
    let is_excused = |hold: &LongHold| hold.group == 0 && failed_over > TTL / 2;
    let lost = kept.iter().filter(|hold| hold.lost.is_some());
    let lost: Vec<_> = lost.filter(|hold| !is_excused(hold)).collect();
    let of = |group: usize| work.count_attempts(|attempt| attempt.group == group);
    let moving = of(MIGRATED_GROUP);
    let others = work.count_attempts(|attempt| !is_affected(attempt));
    let verdict = work.oracle.verdict();
    print_figures(&format!(
        "{what}: handed on after {} ms, promoted after {} ms; dead master: {}; moving slot: {moving}; others: {others}",
        times.hand_off_latency.as_millis(),
        failed_over.as_millis(),
        of(0)
    ));
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
    assert!(lost.is_empty(), "{lost:?}");
    assert!(others.succeeded() > 0 && others.failed() == 0, "{others}");
    let not_renewed =
        moving.count(|verb, answer| verb == CallKind::Renew && answer != CallResult::Succeeded);
    assert_eq!(not_renewed, 0, "the slot is followed: {moving}");
}

/// Returns true if the migration of the slot or the death of the master explains a rejection.
fn is_affected(attempt: &Attempt) -> bool {
    attempt.group == 0 || attempt.group == MIGRATED_GROUP
}

async fn inject_events(fixture: &mut ClusterFixture, work: &Workload) -> ScenarioTimes {
    sleep(PHASE_DURATION).await;
    let handed_on = measure_hand_off(fixture).await;
    let mut migration = fixture.cluster.start_migration(MIGRATED_SLOT, 2).await;
    migration.move_remaining_keys().await;
    sleep(PHASE_DURATION).await;
    migration.finish().await;
    let migrated_at = boottime();
    sleep(PHASE_DURATION).await;
    let killed = boottime();
    fixture.cluster.kill(0).await;
    let next = fixture
        .cluster
        .wait_for_promotion(*initial_slots_of(0).start(), 0)
        .await;
    let promoted = boottime();
    assert!(next >= SHARDS, "a replica");
    let again = async |group: usize, since: Duration| {
        let within = since + QUARANTINE + RESUMED_WITHIN;
        let granted = until("grants again", async || {
            let locks = group * LOCKS_PER_GROUP..(group + 1) * LOCKS_PER_GROUP - 1;
            let mut granted = locks.filter_map(|lock| work.first_grant_after(lock, since));
            granted.next()
        });
        let granted = granted.await;
        assert!(granted <= within, "{:?}", granted - since);
    };
    tokio::join!(again(MIGRATED_GROUP, migrated_at), again(0, promoted));
    work.stop.cancel();
    ScenarioTimes {
        killed_at: killed,
        promoted_at: promoted,
        hand_off_latency: handed_on,
    }
}

/// Hands a lock from one broker to the other, and returns how long this took.
async fn measure_hand_off(fixture: &ClusterFixture) -> Duration {
    let client = Client::new("handed", &fixture.addrs(), 0);
    let name = lock_names_in(&initial_slots_of(2), "handed", 1).remove(0);
    let call = AcquireCall::new(&name, TTL, Duration::ZERO);
    let held = client.acquire_at(0, &call).await.expect("it is free");
    let waiting = client.start_acquire_at(1, &AcquireCall::new(&name, TTL, TTL));
    client.wait_for_queue_length_at(0, &name, 1).await;
    let released = boottime();
    client.release_at(0, &held).await.expect("it is ours");
    let granted = timeout(HAND_OFF_RECEIVED_WITHIN, waiting).await;
    let granted = granted.expect("heard in time").expect("no panic");
    let handed_on = boottime() - released;
    let next = granted.expect("granted");
    client.release_at(1, &next).await.expect("it is theirs");
    handed_on
}

fn locks() -> Vec<Lock> {
    let shards = (0..SHARDS).map(|index| {
        let names =
            lock_names_in(&initial_slots_of(index), "course", LOCKS_PER_GROUP + 1).into_iter();
        let hold = names.filter(|name| slot_of_lock(name) != MIGRATED_SLOT);
        hold.take(LOCKS_PER_GROUP).collect()
    });
    let moving = lock_names_in_each(&[MIGRATED_SLOT], "moving", LOCKS_PER_GROUP);
    let groups: Vec<Vec<String>> = shards.chain(moving).collect();
    let groups = groups.into_iter().enumerate();
    let locks = groups.flat_map(|(group, names)| {
        let names = names.into_iter();
        names.map(move |name| Lock { name, group })
    });
    locks.collect()
}
