//! Death of a master while a slot migrates between two masters. No lock is granted twice, the parts
//! that are not moved work on, and finally the slot is served again.

use std::time::Duration;

use futures::future::join_all;
use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    broker::process::KEY_PREFIX,
    client::unary::{AcquireCall, Client, HeldLease},
    clock::boottime,
    cluster::{
        deployment::{Migration, hash_tag_for},
        fixture::{
            ClusterFixture, QUARANTINE, TTL, fast_failover_options, initial_slots_of,
            lock_names_in, lock_names_in_each,
        },
        workload::{Attempt, CallKind, CallResult, Lock, LongHold, Workload},
    },
    load::mutual_exclusion_oracle::{LockUse, Share},
    scale::print_figures,
    until::until,
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

const BROKERS: usize = 2;
/// Slot that migrates from the first to the second master.
const SLOT: u16 = 4_000;
const SOURCE: usize = 0;
const TARGET: usize = 1;
/// Groups of locks: of an uninvolved master, in the slot with moved records, and in the slot with
/// unmoved records.
const OTHERS: usize = 0;
const MOVED: usize = 1;
const LEFT: usize = 2;
/// Locks per group: two that callers share, one whose holder stops to renew at the death, and one
/// that is renewed while another caller is queued for it.
const EACH: usize = 4;
const RELIED_ON: usize = 2;
const KEPT_GROUP: usize = 3;
const CALLERS: usize = 2;
const RENEW_EVERY: Duration = Duration::from_millis(200);
const ACQUIRE_INTERVAL: Duration = Duration::from_millis(100);
const QUIET_PERIOD: Duration = Duration::from_millis(500);
const RESUMED_WITHIN: Duration = Duration::from_secs(5);
/// Upper bound of a call. The broker responds within a second, but two cores with three clusters
/// may stall for as long.
const ANSWERED: Duration = Duration::from_secs(3);
/// Tolerance for reading two clocks and rounding to milliseconds.
const ROUNDED_OFF: Duration = Duration::from_millis(20);

/// Times of the events in a case.
struct EventTimes {
    killed: Duration,
    /// Time immediately before the slot finally has one master.
    settled: Duration,
    /// Time at which all locks of callers had been granted again.
    again: Duration,
}

/// Both cases run concurrently, because they wait most of the time.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_dies_gives_no_lock_twice() {
    tokio::join!(
        the_target_dies_with_the_era_and_the_slot_stays(),
        the_target_dies_and_its_replica_gets_the_rest()
    );
}

async fn the_target_dies_with_the_era_and_the_slot_stays() {
    let mut fixture = ClusterFixture::start(fast_failover_options(), BROKERS).await;
    let work = Workload::new(locks(), &fixture.addrs());
    let dead = CancellationToken::new();
    let happens = async {
        in_use(&work).await;
        let mut migration = fixture.cluster.start_migration(SLOT, TARGET).await;
        move_half(&mut migration, &work, true).await;
        drop(migration);
        let killed = boottime();
        dead.cancel();
        fixture.cluster.kill(TARGET).await;
        let settled = boottime();
        let mut source = fixture.cluster.connect(SOURCE).await;
        let stable = ["CLUSTER", "SETSLOT", &SLOT.to_string(), "STABLE"];
        source.must(&stable).await;
        let next = fixture
            .cluster
            .wait_for_promotion(*initial_slots_of(TARGET).start(), TARGET)
            .await;
        assert_ne!(next, TARGET);
        let again = granted_again(&work, settled).await;
        EventTimes {
            killed,
            settled,
            again,
        }
    };
    let (times, kept) = run_workload(&work, &dead, happens).await;
    assert_results(&work, "target dies with the era, STABLE", &times, &kept);
    waits_out_the_quarantine(&work, &times, &[MOVED, LEFT]);
    assert!(keeps_group(&kept, LEFT), "{kept:?}");
}

async fn the_target_dies_and_its_replica_gets_the_rest() {
    let mut fixture = ClusterFixture::start(fast_failover_options(), BROKERS).await;
    let work = Workload::new(locks(), &fixture.addrs());
    let dead = CancellationToken::new();
    let happens = async {
        in_use(&work).await;
        let mut migration = fixture.cluster.start_migration(SLOT, TARGET).await;
        move_half(&mut migration, &work, false).await;
        drop(migration);
        let killed = boottime();
        dead.cancel();
        fixture.cluster.kill(TARGET).await;
        let next = fixture
            .cluster
            .wait_for_promotion(*initial_slots_of(TARGET).start(), TARGET)
            .await;
        // The slot stays unserved for a while.
        sleep(QUIET_PERIOD).await;
        let halves = [MOVED, LEFT].map(|half| {
            work.count_attempts(|attempt| attempt.group == half && attempt.started_at > killed)
        });
        let mut migration = fixture.cluster.start_migration(SLOT, next).await;
        migration.move_remaining_keys().await;
        let settled = boottime();
        migration.finish().await;
        let again = granted_again(&work, settled).await;
        let times = EventTimes {
            killed,
            settled,
            again,
        };
        (times, halves)
    };
    let ((times, [moved, left]), kept) = run_workload(&work, &dead, happens).await;
    print_figures(&format!(
        "cluster_half_moved while the target was dead: moved: {moved}; left: {left}"
    ));
    assert!(left.succeeded() > 0, "what was not moved goes on: {left}");
    assert_eq!(left.failed(), 0, "what was not moved goes on: {left}");
    assert_results(&work, "target dies, finished at its replica", &times, &kept);
    waits_out_the_quarantine(&work, &times, &[MOVED, LEFT]);
    assert!(keeps_group(&kept, LEFT), "{kept:?}");
}

/// Only a broker that has followed locks to the target can detect the loss. The source has its era
/// and has lost nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_stays_after_its_target_died_grants_no_lock_twice() {
    let mut fixture = ClusterFixture::start(fast_failover_options(), BROKERS).await;
    let work = Workload::new(locks(), &fixture.addrs());
    let dead = CancellationToken::new();
    let happens = async {
        in_use(&work).await;
        let mut migration = fixture.cluster.start_migration(SLOT, TARGET).await;
        move_half(&mut migration, &work, false).await;
        drop(migration);
        let killed = boottime();
        dead.cancel();
        fixture.cluster.kill(TARGET).await;
        let settled = boottime();
        let mut source = fixture.cluster.connect(SOURCE).await;
        let stable = ["CLUSTER", "SETSLOT", &SLOT.to_string(), "STABLE"];
        source.must(&stable).await;
        let again = granted_again(&work, settled).await;
        EventTimes {
            killed,
            settled,
            again,
        }
    };
    let (times, kept) = run_workload(&work, &dead, happens).await;
    let what = "target dies without the era, STABLE";
    assert_results(&work, what, &times, &kept);
    waits_out_the_quarantine(&work, &times, &[MOVED]);
    assert!(keeps_group(&kept, LEFT), "{kept:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_dies_without_the_era_gives_no_lock_twice() {
    let mut fixture = ClusterFixture::start(fast_failover_options(), BROKERS).await;
    let work = Workload::new(locks(), &fixture.addrs());
    let dead = CancellationToken::new();
    let happens = async {
        in_use(&work).await;
        let mut migration = fixture.cluster.start_migration(SLOT, TARGET).await;
        move_half(&mut migration, &work, true).await;
        drop(migration);
        let killed = boottime();
        dead.cancel();
        fixture.cluster.kill(SOURCE).await;
        let next = fixture.cluster.wait_for_promotion(SLOT + 1, SOURCE).await;
        assert_ne!(next, SOURCE);
        // The target still expects to import the slot from the dead master.
        let again = fixture.cluster.start_migration_between(SLOT, next, TARGET);
        let mut migration = again.await.replacing_keys();
        migration.move_remaining_keys().await;
        let settled = boottime();
        migration.finish().await;
        let again = granted_again(&work, settled).await;
        EventTimes {
            killed,
            settled,
            again,
        }
    };
    let (times, kept) = run_workload(&work, &dead, happens).await;
    assert_results(
        &work,
        "source dies without the era, finished",
        &times,
        &kept,
    );
    waits_out_the_quarantine(&work, &times, &[MOVED, LEFT]);
}

/// Returns the locks of the three groups.
fn locks() -> Vec<Lock> {
    let mut of_slot = lock_names_in_each(&[SLOT], "half", 2 * EACH).remove(0);
    let left = of_slot.split_off(EACH);
    let groups = [
        lock_names_in(&initial_slots_of(2), "others", EACH),
        of_slot,
        left,
    ];
    let locks = groups.into_iter().enumerate().flat_map(|(group, names)| {
        let of_group = move |name| Lock { name, group };
        names.into_iter().map(of_group)
    });
    locks.collect()
}

/// Waits until every renewed lock has its holder and its rival, and callers have run for a while.
async fn in_use(work: &Workload) {
    for group in [OTHERS, MOVED, LEFT] {
        work.wait_for_queue_length(group * EACH + KEPT_GROUP, 1)
            .await;
    }
    sleep(QUIET_PERIOD).await;
}

/// Moves the records of one group, optionally with the era, and lets brokers use the slot for a
/// while.
async fn move_half(migration: &mut Migration<'_>, work: &Workload, with_era: bool) {
    let moving = work.locks.iter().filter(|lock| lock.group == MOVED);
    let keys = moving.map(|lock| format!("{KEY_PREFIX}{{default:{}}}", lock.name));
    let era = with_era.then(|| format!("{KEY_PREFIX}era{}", hash_tag_for(SLOT)));
    migration
        .move_keys(&keys.chain(era).collect::<Vec<_>>())
        .await;
    let left = migration.remaining_keys().await.len();
    assert!(left >= EACH, "{left} keys are left");
    sleep(QUIET_PERIOD).await;
}

/// Runs all clients until `happens` has completed, and returns the fate of the renewed leases.
async fn run_workload<T>(
    work: &Workload,
    dead: &CancellationToken,
    happens: impl Future<Output = T>,
) -> (T, Vec<LongHold>) {
    let groups = [OTHERS, MOVED, LEFT].map(|group| group * EACH);
    let lists: Vec<Vec<usize>> = groups
        .iter()
        .map(|first| (*first..first + RELIED_ON).collect())
        .collect();
    let callers = lists
        .iter()
        .flat_map(|locks| (0..CALLERS).map(move |index| work.run_caller(locks, index)));
    let reliers = groups.map(|first| hold_until_end_of_validity(work, first + RELIED_ON, dead));
    let kept =
        groups.map(|first| work.hold_unary(first + KEPT_GROUP, first + KEPT_GROUP, &work.stop));
    // After the loss of a lease, these clients acquire its lock as soon as possible.
    let snatchers = groups.iter().flat_map(|first| {
        [RELIED_ON, KEPT_GROUP].map(|lock| acquire_whenever_free(work, first + lock))
    });
    let rivals = groups.map(async |first| {
        work.wait_for_queue_length(first + KEPT_GROUP, 0).await;
        let wait = async || {
            work.wait_for_grant(first + KEPT_GROUP, first + KEPT_GROUP + 1)
                .await
        };
        // A broker that has not yet agreed on the slot's era rejects callers for a short time.
        while wait().await.is_none() && !work.stop.is_cancelled() {
            sleep(ACQUIRE_INTERVAL).await;
        }
    });
    let happens = async {
        let happened = happens.await;
        assert_renews(work).await;
        work.stop.cancel();
        happened
    };
    let (_, _, _, kept, _, happened) = tokio::join!(
        join_all(callers),
        join_all(reliers),
        join_all(snatchers),
        join_all(kept),
        join_all(rivals),
        happens
    );
    (happened, kept)
}

/// Holds a lock until a master dies, and then relies on it until the end of the validity.
async fn hold_until_end_of_validity(work: &Workload, lock: usize, dead: &CancellationToken) {
    let client = Client::new("relier", work.addrs(), 0);
    let call = AcquireCall::new(&work.locks[lock].name, TTL, Duration::ZERO);
    let held = client.acquire(&call).await;
    let (mut held, entered) = (held.expect("it is free"), boottime());
    while !dead.is_cancelled() {
        match client.renew_at(0, &held).await {
            Ok(renewed) => held = renewed,
            Err(status) => assert!(dead.is_cancelled(), "{status}"),
        }
        sleep(RENEW_EVERY).await;
    }
    sleep(held.trusted_until().saturating_sub(boottime())).await;
    record_use(work, lock, &held, entered);
}

fn record_use(work: &Workload, lock: usize, held: &HeldLease, entered: Duration) {
    work.oracle.record(LockUse {
        lock,
        share: Share::ALL,
        token: held.token(),
        started_at: entered,
        ended_at: boottime().min(held.trusted_until()),
    });
}

/// Acquires a lock without queueing whenever possible, which must not be possible during the
/// validity of another holder.
async fn acquire_whenever_free(work: &Workload, lock: usize) {
    let client = Client::new("snatcher", work.addrs(), 0);
    work.wait_for_queue_length(lock, usize::from(lock % EACH == KEPT_GROUP))
        .await;
    while !work.stop.is_cancelled() {
        let call = AcquireCall::new(&work.locks[lock].name, TTL, Duration::ZERO);
        if let Ok(held) = client.acquire_at(0, &call).await {
            let entered = boottime();
            sleep(ACQUIRE_INTERVAL).await;
            record_use(work, lock, &held, entered);
            // A lease that cannot be released expires.
            let _ = client.release_at(0, &held).await;
        }
        sleep(ACQUIRE_INTERVAL).await;
    }
}

/// Waits until all locks of callers in the slot were granted after the quarantine, and returns the
/// time of the last grant.
async fn granted_again(work: &Workload, since: Duration) -> Duration {
    let locks = [MOVED, LEFT].map(|group| group * EACH..group * EACH + RELIED_ON);
    let granted = locks.into_iter().flatten().map(async |lock| {
        until("grants in the slot", async || {
            work.first_grant_after(lock, since + QUARANTINE - ROUNDED_OFF)
        })
        .await
    });
    let granted = join_all(granted).await.into_iter().max();
    granted.expect("the slot has locks")
}

/// Asserts that every broker soon renews a new lease in the slot. Most earlier leases are lost too
/// soon to show that renewals work.
async fn assert_renews(work: &Workload) {
    let client = Client::new("renewer", work.addrs(), 0);
    let names = lock_names_in_each(&[SLOT], "renewed", work.addrs().len()).remove(0);
    for (at, name) in names.iter().enumerate() {
        let call = AcquireCall::new(name, TTL, Duration::ZERO);
        let held = until("a new lease in the slot", async || {
            client.acquire_at(at, &call).await.ok()
        })
        .await;
        let granted = boottime();
        until("a renewal in the slot", async || {
            client.renew_at(at, &held).await.ok()
        })
        .await;
        let took = boottime() - granted;
        assert!(took <= ANSWERED, "renewed after {took:?}");
    }
}

fn keeps_group(kept: &[LongHold], group: usize) -> bool {
    let mut of_group = kept.iter().filter(|hold| hold.group == group);
    of_group.all(|hold| hold.lost.is_none())
}

/// Prints the results, and asserts what holds in every case.
fn assert_results(work: &Workload, what: &str, times: &EventTimes, kept: &[LongHold]) {
    let of = |group: usize| {
        work.count_attempts(|attempt| attempt.group == group && attempt.ended_at > times.killed)
    };
    let verdict = work.oracle.verdict();
    let lost: Vec<_> = kept.iter().filter(|hold| hold.lost.is_some()).collect();
    let after = times.again - times.settled;
    print_figures(&format!(
        "cluster_half_moved {what}: settled {} ms after the death, all granted {} ms later (Q={} ms), visits={} \
         overlaps={} leases lost={}; moved: {}; left: {}; others: {}",
        (times.settled - times.killed).as_millis(),
        after.as_millis(),
        QUARANTINE.as_millis(),
        verdict.uses,
        verdict.overlaps,
        lost.len(),
        of(MOVED),
        of(LEFT),
        of(OTHERS)
    ));
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
    assert!(after <= QUARANTINE + RESUMED_WITHIN, "{after:?}");
    let others = work.count_attempts(|attempt| attempt.group == OTHERS);
    assert!(others.succeeded() > 0 && others.failed() == 0, "{others}");
    assert!(keeps_group(kept, OTHERS), "{lost:?}");
    let attempts = work.attempts();
    let wrong: Vec<_> = attempts
        .iter()
        .filter(|attempt| is_unexplained(attempt, times))
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Asserts that nothing is granted between the settlement of the slot and the end of the
/// quarantine.
fn waits_out_the_quarantine(work: &Workload, times: &EventTimes, groups: &[usize]) {
    let open = times.settled + QUARANTINE - ROUNDED_OFF;
    let too_soon = work.count_attempts(|attempt| {
        let in_quarantine = |granted| granted > times.settled && granted < open;
        groups.contains(&attempt.group) && attempt.granted_at.is_some_and(in_quarantine)
    });
    assert_eq!(too_soon.grants(), 0, "{too_soon}");
}

/// Returns true if neither the death nor the migration explains the result or its delay.
fn is_unexplained(attempt: &Attempt, times: &EventTimes) -> bool {
    let is_slow = attempt.ended_at - attempt.started_at > ANSWERED;
    match attempt.result {
        CallResult::Succeeded => false,
        CallResult::NoReply => true,
        CallResult::Rejected(ErrorReason::StoreUnavailable) => is_slow,
        CallResult::Rejected(ErrorReason::StoreRecovering) => match attempt.kind {
            CallKind::Acquire => false,
            // A new master renews after the former one is known to serve nothing, which does not
            // take long.
            CallKind::Renew => is_slow || attempt.started_at > times.settled + RESUMED_WITHIN,
            CallKind::Release => true,
        },
        CallResult::Rejected(ErrorReason::WaitTimeout) => attempt.kind != CallKind::Acquire,
        // The lease was lost with its master, or has expired in the meantime.
        CallResult::Rejected(ErrorReason::LeaseNotFound | ErrorReason::LeaseExpired) => {
            attempt.group == OTHERS
        }
        CallResult::Rejected(_) => true,
    }
}
