//! Migration of cluster slots while their locks are in use. Holders keep their leases, waiters keep
//! their queue positions, nothing new is granted for the quarantine, and other slots are not
//! affected.

use std::time::Duration;

use futures::future::{Either, join_all};
use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    clock::boottime,
    cluster::{
        deployment::{ClusterDeployment, ClusterOptions, Migration},
        fixture::{
            ClusterFixture, QUARANTINE, SHARDS, initial_slots_of, lock_names_in,
            lock_names_in_each, slot_of_lock,
        },
        workload::{CallKind, CallResult, Lock, LongHold, Workload},
    },
    load::grant_rate::GrantRate,
    scale::{print_figures, scaled_count},
    until::until,
};
use rand::seq::SliceRandom as _;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

const BROKERS: usize = 2;
/// Number of callers and locks per shard, outside of moving slots.
const CALLERS: usize = 8;
const HOT: usize = 3;
/// Number of callers of the free lock of each moving slot.
const CALLERS_OF_SLOT: usize = 2;
const WAITERS: usize = 4;
const QUIET_PERIOD: Duration = Duration::from_secs(1);
/// Time for which a slot stays partly migrated, or with another master.
const HALF_WAY: Duration = Duration::from_secs(2);
const RESUMED_WITHIN: Duration = Duration::from_secs(5);
/// Tolerance for reading two clocks and rounding to milliseconds.
const ROUNDED_OFF: Duration = Duration::from_millis(20);

/// Course of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    Straight,
    /// Some keys are moved later than others. The key of the era is moved first.
    EraFirst,
    /// Some keys are moved later than others. The key of the era is moved last.
    EraLast,
    /// All keys are moved, but the slot is assigned later.
    NotGiven,
    /// The slot is moved to another master, which brokers detect, and back. Without detection,
    /// brokers would continue with the old era.
    AndBack,
}

const COURSES: [Course; 5] = [
    Course::Straight,
    Course::EraFirst,
    Course::AndBack,
    Course::EraLast,
    Course::NotGiven,
];

/// A moving slot and its locks.
struct MovingSlot {
    slot: u16,
    way: Course,
    group: usize,
    by_calls: usize,
    on_stream: usize,
    in_line: usize,
    free: usize,
    moved: CancellationToken,
}

/// Course of one migration.
#[derive(Debug)]
struct Moved {
    from: Duration,
    /// Time immediately before the final master was assigned the slot.
    migrated_at: Duration,
    /// Time at which every node had learned of the assignment.
    known: Duration,
    /// Number of keys that were moved first, and of the remaining keys.
    parted: (usize, usize),
}

/// The first holder of a lock, and the grants of its waiters with time and fencing token.
type QueuedLock = (LongHold, Vec<Option<(Duration, i64)>>);

#[tokio::test(flavor = "multi_thread")]
async fn slots_move_under_their_locks() {
    let fixture = ClusterFixture::start(ClusterOptions::default(), BROKERS).await;
    let (locks, slots) = plan(scaled_count(20, COURSES.len()));
    let work = Workload::new(locks, &fixture.addrs());
    let others: Vec<Vec<usize>> = (0..SHARDS)
        .map(|shard| (shard * HOT..(shard + 1) * HOT).collect())
        .collect();
    let callers = others.iter().flat_map(|locks| {
        let work = &work;
        (0..CALLERS).map(move |index| work.run_caller(locks, index))
    });
    let free: Vec<_> = slots.iter().map(|slot| [slot.free]).collect();
    let callers_of_slots = free.iter().flat_map(|lock| {
        let work = &work;
        (0..CALLERS_OF_SLOT).map(move |index| work.run_caller(lock, index))
    });
    let by_calls = slots.iter().map(|slot| slot.by_calls);
    let by_calls = by_calls.map(|lock| work.hold_unary(lock, lock, &work.stop));
    let on_streams = slots.iter().map(|slot| slot.on_stream);
    let on_streams = on_streams.map(|lock| work.hold_on_stream(lock, lock, &work.stop));
    let lines = slots.iter().map(|slot| line(&work, slot));
    let started_at = boottime();
    let moves = async {
        for slot in &slots {
            work.wait_for_queue_length(slot.in_line, WAITERS).await;
        }
        sleep(QUIET_PERIOD).await;
        let mut moved = Vec::new();
        for slot in &slots {
            moved.push(move_slot(&fixture.cluster, slot).await);
            slot.moved.cancel();
        }
        for (slot, moved) in slots.iter().zip(&moved) {
            let after = moved.migrated_at + QUARANTINE;
            until("grants in every slot that moved", async || {
                work.first_grant_after(slot.free, after)
            })
            .await;
        }
        sleep(QUIET_PERIOD).await;
        work.stop.cancel();
        moved
    };
    let (_, _, by_calls, on_streams, lines, moved) = tokio::join!(
        join_all(callers),
        join_all(callers_of_slots),
        join_all(by_calls),
        join_all(on_streams),
        join_all(lines),
        moves
    );
    for ((slot, moved), line) in slots.iter().zip(&moved).zip(&lines) {
        judge_slot(&work, slot, moved, line);
    }
    let stays = by_calls.iter().chain(&on_streams);
    assert_results(&work, &stays.collect::<Vec<_>>(), boottime() - started_at);
}

/// Returns all locks: those outside of moving slots in group 0, and those of each moving slot.
fn plan(count: usize) -> (Vec<Lock>, Vec<MovingSlot>) {
    let mut rng = rand::thread_rng();
    let moving: Vec<u16> = (0..count)
        .map(|index| {
            let of_shard: Vec<_> = initial_slots_of(index % SHARDS).collect();
            *of_shard.choose(&mut rng).expect("a shard has slots")
        })
        .collect();
    let stays = |name: &String| !moving.contains(&slot_of_lock(name));
    let others = (0..SHARDS).flat_map(|index| {
        let names = lock_names_in(&initial_slots_of(index), "stays", 2 * HOT).into_iter();
        names.filter(stays).take(HOT)
    });
    let mut locks: Vec<_> = others.map(|name| Lock { name, group: 0 }).collect();
    assert_eq!(locks.len(), SHARDS * HOT);
    let mut slots = Vec::new();
    for (index, names) in lock_names_in_each(&moving, "moves", 4)
        .into_iter()
        .enumerate()
    {
        let (first, group) = (locks.len(), index + 1);
        locks.extend(names.into_iter().map(|name| Lock { name, group }));
        slots.push(MovingSlot {
            slot: moving[index],
            way: COURSES[index % COURSES.len()],
            group,
            by_calls: first,
            on_stream: first + 1,
            in_line: first + 2,
            free: first + 3,
            moved: CancellationToken::new(),
        });
    }
    (locks, slots)
}

/// Holds a lock until its slot has moved, with waiters at every broker by calls and on streams.
async fn line(work: &Workload, slot: &MovingSlot) -> QueuedLock {
    let lock = slot.in_line;
    let keeper = work.hold_unary(lock, lock, &slot.moved);
    let waiters = (0..WAITERS).map(async |place| {
        work.wait_for_queue_length(lock, place).await;
        let index = lock + place;
        let granted = if place % 2 == 0 {
            Either::Left(work.wait_for_grant(lock, index))
        } else {
            Either::Right(work.wait_for_grant_on_stream(lock, index))
        };
        granted.await
    });
    tokio::join!(keeper, join_all(waiters))
}

async fn move_slot(cluster: &ClusterDeployment, slot: &MovingSlot) -> Moved {
    let from = boottime();
    let home = cluster.master_of(slot.slot).await;
    let away = (home + 1) % SHARDS;
    let mut migration = cluster.start_migration(slot.slot, away).await;
    let mut parted = (0, 0);
    match slot.way {
        Course::Straight => migration.move_remaining_keys().await,
        Course::EraFirst | Course::EraLast => parted = part(&mut migration, slot.way).await,
        Course::NotGiven => {
            migration.move_remaining_keys().await;
            sleep(HALF_WAY).await;
        }
        Course::AndBack => {
            migration.move_remaining_keys().await;
            migration.finish().await;
            sleep(HALF_WAY).await;
            migration = cluster.start_migration(slot.slot, home).await;
            migration.move_remaining_keys().await;
        }
    }
    let migrated_at = boottime();
    migration.finish().await;
    Moved {
        from,
        migrated_at,
        known: boottime(),
        parted,
    }
}

/// Moves some keys, lets both masters serve for a while, and moves the rest.
async fn part(migration: &mut Migration<'_>, way: Course) -> (usize, usize) {
    let keys = migration.remaining_keys().await;
    let (eras, locks): (Vec<_>, Vec<_>) =
        keys.into_iter().partition(|key| !key.contains("{default:"));
    assert_eq!(eras.len(), 1, "one era");
    let mut first = locks[..locks.len() / 2].to_vec();
    if way == Course::EraFirst {
        first.extend(eras);
    }
    migration.move_keys(&first).await;
    let left = migration.remaining_keys().await.len();
    sleep(HALF_WAY).await;
    migration.move_remaining_keys().await;
    (first.len(), left)
}

fn judge_slot(work: &Workload, slot: &MovingSlot, moved: &Moved, (holder, line): &QueuedLock) {
    let after = |moment: Duration| moment.saturating_sub(moved.known).as_millis();
    let of_slot =
        work.count_attempts(|attempt| attempt.group == slot.group && attempt.ended_at > moved.from);
    let open = moved.migrated_at + QUARANTINE - ROUNDED_OFF;
    let resumed = work
        .first_grant_after(slot.free, open)
        .expect("granted again");
    let line: Option<Vec<_>> = line.iter().copied().collect();
    let line = line.expect("every waiter gets the lock");
    let last = line.last().expect("there was a waiter").0;
    print_figures(&format!(
        "cluster_migration {:?}: slot {} moved in {} ms, parted={:?}, grants {} ms later, the last waiter {} ms \
         later (Q={} ms); {of_slot}",
        slot.way,
        slot.slot,
        (moved.known - moved.from).as_millis(),
        moved.parted,
        after(resumed),
        after(last),
        QUARANTINE.as_millis()
    ));
    assert!(holder.lost.is_none(), "{holder:?}");
    let mut before = (moved.migrated_at + QUARANTINE - ROUNDED_OFF, holder.token);
    for granted in &line {
        assert!(
            granted > &before && granted.1 > before.1,
            "{granted:?} after {before:?}"
        );
        before = *granted;
    }
    let too_soon = work.count_attempts(|attempt| {
        let in_quarantine = |granted| granted > moved.known && granted < open;
        attempt.group == slot.group && attempt.granted_at.is_some_and(in_quarantine)
    });
    assert_eq!(too_soon.grants(), 0, "grants before the quarantine is over");
    let late = resumed.max(last) - moved.known;
    assert!(late <= QUARANTINE + RESUMED_WITHIN, "grants after {late:?}");
    let answered = |verb, reason| of_slot.count(|of, answer| of == verb && answer == reason);
    let recovering = answered(
        CallKind::Acquire,
        CallResult::Rejected(ErrorReason::StoreRecovering),
    );
    assert!(recovering > 0, "the quarantine was met");
    let refused = [ErrorReason::StoreUnavailable, ErrorReason::StoreRecovering];
    let refused = refused.map(|reason| answered(CallKind::Renew, CallResult::Rejected(reason)));
    let not_renewed: usize = refused.iter().sum();
    let renewed = answered(CallKind::Renew, CallResult::Succeeded);
    assert!(
        not_renewed * 10 <= renewed,
        "leases are found where they are"
    );
    if matches!(slot.way, Course::EraFirst | Course::EraLast) {
        assert!(moved.parted.0 > 1 && moved.parted.1 > 1, "{moved:?}");
    }
}

fn assert_results(work: &Workload, stays: &[&LongHold], ran: Duration) {
    let moving = work.count_attempts(|attempt| attempt.group > 0);
    let others = work.count_attempts(|attempt| attempt.group == 0);
    let verdict = work.oracle.verdict();
    let unavailable = |_, answer| answer == CallResult::Rejected(ErrorReason::StoreUnavailable);
    print_figures(&format!(
        "cluster_migration: {} s, leases kept={} unavailable={} visits={} overlaps={} regressions={}",
        ran.as_secs(),
        stays.len(),
        moving.count(unavailable),
        verdict.uses,
        verdict.overlaps,
        verdict.regressions
    ));
    print_figures(&format!("cluster_migration: in slots that moved: {moving}"));
    print_figures(&format!("cluster_migration: in others: {others}"));
    for hold in stays {
        assert!(hold.lost.is_none(), "{hold:?}");
    }
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
    assert_eq!(others.failed(), 0, "slots that stay lose no call");
    assert!(others.is_prompt(), "slots that stay wait for nothing");
    assert_eq!(moving.count(is_unexplained), 0, "wrong answers");
    GrantRate::new(others.grants(), ran).assert_sufficient();
}

/// Returns true if the migration does not explain the result. A renewal waits until the former
/// master has confirmed that it no longer serves the slot. Neither renewals nor releases wait for
/// the quarantine.
fn is_unexplained(verb: CallKind, answer: CallResult) -> bool {
    match answer {
        CallResult::Succeeded => false,
        CallResult::NoReply => true,
        CallResult::Rejected(ErrorReason::StoreUnavailable) => false,
        CallResult::Rejected(ErrorReason::StoreRecovering) => verb == CallKind::Release,
        CallResult::Rejected(ErrorReason::WaitTimeout) => verb != CallKind::Acquire,
        CallResult::Rejected(_) => true,
    }
}
