//! Slots of a cluster that move from one master to another while their locks are in use: holders go
//! on, waiters keep their places, nothing new is granted for a while, and other slots notice nothing.

use std::time::Duration;

use futures::future::{Either, join_all};
use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    clock::boottime,
    cluster::{ClusterDeployment, ClusterOptions, Migration},
    cluster_site::{ClusterSite, QUARANTINE, SHARDS, locks_in, locks_in_each, shard, slot_of_lock},
    cluster_work::{Answer, Lock, Stay, Verb, Work},
    scale::{count, figures},
    until::until,
};
use rand::seq::SliceRandom as _;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

const BROKERS: usize = 2;
/// In each shard, on locks that don't move.
const CALLERS: usize = 8;
const HOT: usize = 3;
/// On the free lock of each slot that moves.
const CALLERS_OF_SLOT: usize = 2;
const IN_LINE: usize = 4;
const CALM: Duration = Duration::from_secs(1);
/// How long a slot stays half moved, or elsewhere.
const HALF_WAY: Duration = Duration::from_secs(2);
const RESUMED_WITHIN: Duration = Duration::from_secs(5);
/// Two clocks are read, and whole milliseconds counted.
const ROUNDED_OFF: Duration = Duration::from_millis(20);

/// How a slot moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Straight,
    /// Some keys are here and some there for a while; among the first there is that of the era.
    EraFirst,
    /// The same, and that of the era is among the last.
    EraLast,
    /// All keys are there, and nobody has given the slot away yet, for a while.
    NotGiven,
    /// To another master, which is found to have it, and back. If nobody noticed, the old era would be
    /// as good as ever.
    AndBack,
}

const WAYS: [Way; 5] = [
    Way::Straight,
    Way::EraFirst,
    Way::AndBack,
    Way::EraLast,
    Way::NotGiven,
];

/// A slot that moves, and its locks.
struct Slot {
    slot: u16,
    way: Way,
    group: usize,
    by_calls: usize,
    on_stream: usize,
    in_line: usize,
    free: usize,
    moved: CancellationToken,
}

/// How it went.
#[derive(Debug)]
struct Moved {
    from: Duration,
    /// When its last master was about to be told that it has the slot.
    given: Duration,
    /// When every node knew.
    known: Duration,
    /// How many keys were moved at first, and how many were left.
    parted: (usize, usize),
}

/// Who held a lock at first, and when those in line were granted it, with which token.
type Line = (Stay, Vec<Option<(Duration, i64)>>);

#[tokio::test(flavor = "multi_thread")]
async fn slots_move_under_their_locks() {
    let site = ClusterSite::start(ClusterOptions::default(), BROKERS).await;
    let (locks, slots) = plan(count(20, WAYS.len()));
    let work = Work::new(locks, &site.addrs());
    let others: Vec<Vec<usize>> = (0..SHARDS)
        .map(|shard| (shard * HOT..(shard + 1) * HOT).collect())
        .collect();
    let callers = others.iter().flat_map(|locks| {
        let work = &work;
        (0..CALLERS).map(move |index| work.call(locks, index))
    });
    let free: Vec<_> = slots.iter().map(|slot| [slot.free]).collect();
    let callers_of_slots = free.iter().flat_map(|lock| {
        let work = &work;
        (0..CALLERS_OF_SLOT).map(move |index| work.call(lock, index))
    });
    let by_calls = slots.iter().map(|slot| slot.by_calls);
    let by_calls = by_calls.map(|lock| work.keep(lock, lock, &work.stop));
    let on_streams = slots.iter().map(|slot| slot.on_stream);
    let on_streams = on_streams.map(|lock| work.keep_on_stream(lock, lock, &work.stop));
    let lines = slots.iter().map(|slot| line(&work, slot));
    let begun = boottime();
    let moves = async {
        for slot in &slots {
            work.line_of(slot.in_line, IN_LINE).await;
        }
        sleep(CALM).await;
        let mut moved = Vec::new();
        for slot in &slots {
            moved.push(move_slot(&site.cluster, slot).await);
            slot.moved.cancel();
        }
        for (slot, moved) in slots.iter().zip(&moved) {
            let after = moved.given + QUARANTINE;
            until("grants in every slot that moved", async || {
                work.granted_after(slot.free, after)
            })
            .await;
        }
        sleep(CALM).await;
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
    judge(&work, &stays.collect::<Vec<_>>(), boottime() - begun);
}

/// The locks: those that don't move, in group 0, and then those of each slot that does.
fn plan(count: usize) -> (Vec<Lock>, Vec<Slot>) {
    let mut rng = rand::thread_rng();
    let moving: Vec<u16> = (0..count)
        .map(|index| {
            let of_shard: Vec<_> = shard(index % SHARDS).collect();
            *of_shard.choose(&mut rng).expect("a shard has slots")
        })
        .collect();
    let stays = |name: &String| !moving.contains(&slot_of_lock(name));
    let others = (0..SHARDS).flat_map(|index| {
        let names = locks_in(&shard(index), "stays", 2 * HOT).into_iter();
        names.filter(stays).take(HOT)
    });
    let mut locks: Vec<_> = others.map(|name| Lock { name, group: 0 }).collect();
    assert_eq!(locks.len(), SHARDS * HOT);
    let mut slots = Vec::new();
    for (index, names) in locks_in_each(&moving, "moves", 4).into_iter().enumerate() {
        let (first, group) = (locks.len(), index + 1);
        locks.extend(names.into_iter().map(|name| Lock { name, group }));
        slots.push(Slot {
            slot: moving[index],
            way: WAYS[index % WAYS.len()],
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

/// Somebody holds the lock until its slot has moved, and others wait behind, at every broker, by
/// calls and on streams.
async fn line(work: &Work, slot: &Slot) -> Line {
    let lock = slot.in_line;
    let keeper = work.keep(lock, lock, &slot.moved);
    let waiters = (0..IN_LINE).map(async |place| {
        work.line_of(lock, place).await;
        let index = lock + place;
        let granted = if place % 2 == 0 {
            Either::Left(work.wait_behind(lock, index))
        } else {
            Either::Right(work.wait_behind_on_stream(lock, index))
        };
        granted.await
    });
    tokio::join!(keeper, join_all(waiters))
}

async fn move_slot(cluster: &ClusterDeployment, slot: &Slot) -> Moved {
    let from = boottime();
    let home = cluster.master_of(slot.slot).await;
    let away = (home + 1) % SHARDS;
    let mut migration = cluster.begin_migration(slot.slot, away).await;
    let mut parted = (0, 0);
    match slot.way {
        Way::Straight => migration.move_all().await,
        Way::EraFirst | Way::EraLast => parted = part(&mut migration, slot.way).await,
        Way::NotGiven => {
            migration.move_all().await;
            sleep(HALF_WAY).await;
        }
        Way::AndBack => {
            migration.move_all().await;
            migration.finish().await;
            sleep(HALF_WAY).await;
            migration = cluster.begin_migration(slot.slot, home).await;
            migration.move_all().await;
        }
    }
    let given = boottime();
    migration.finish().await;
    Moved {
        from,
        given,
        known: boottime(),
        parted,
    }
}

/// Moves some keys, lets them be used here and there, and moves the rest.
async fn part(migration: &mut Migration<'_>, way: Way) -> (usize, usize) {
    let keys = migration.keys_left().await;
    let (eras, locks): (Vec<_>, Vec<_>) =
        keys.into_iter().partition(|key| !key.contains("{default:"));
    assert_eq!(eras.len(), 1, "one era");
    let mut first = locks[..locks.len() / 2].to_vec();
    if way == Way::EraFirst {
        first.extend(eras);
    }
    migration.move_keys(&first).await;
    let left = migration.keys_left().await.len();
    sleep(HALF_WAY).await;
    migration.move_all().await;
    (first.len(), left)
}

fn judge_slot(work: &Work, slot: &Slot, moved: &Moved, (holder, line): &Line) {
    let after = |moment: Duration| moment.saturating_sub(moved.known).as_millis();
    let of_slot = work.tally(|attempt| attempt.group == slot.group && attempt.ended > moved.from);
    let open = moved.given + QUARANTINE - ROUNDED_OFF;
    let resumed = work.granted_after(slot.free, open).expect("granted again");
    let line: Option<Vec<_>> = line.iter().copied().collect();
    let line = line.expect("everybody in line gets the lock");
    let last = line.last().expect("somebody was in line").0;
    figures(&format!(
        "cluster_migration {:?}: slot {} moved in {} ms, parted={:?}, grants {} ms later, the last in line {} ms \
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
    let mut before = (moved.given + QUARANTINE - ROUNDED_OFF, holder.token);
    for granted in &line {
        assert!(
            granted > &before && granted.1 > before.1,
            "{granted:?} after {before:?}"
        );
        before = *granted;
    }
    let too_soon = work.tally(|attempt| {
        let in_quarantine = |granted| granted > moved.known && granted < open;
        attempt.group == slot.group && attempt.granted.is_some_and(in_quarantine)
    });
    assert_eq!(too_soon.grants(), 0, "grants before the quarantine is over");
    let late = resumed.max(last) - moved.known;
    assert!(late <= QUARANTINE + RESUMED_WITHIN, "grants after {late:?}");
    let answered = |verb, reason| of_slot.count(|of, answer| of == verb && answer == reason);
    let recovering = answered(Verb::Acquire, Answer::Refused(ErrorReason::StoreRecovering));
    assert!(recovering > 0, "the quarantine was met");
    let refused = [ErrorReason::StoreUnavailable, ErrorReason::StoreRecovering];
    let refused = refused.map(|reason| answered(Verb::Renew, Answer::Refused(reason)));
    let not_renewed: usize = refused.iter().sum();
    let renewed = answered(Verb::Renew, Answer::Done);
    assert!(
        not_renewed * 10 <= renewed,
        "leases are found where they are"
    );
    if matches!(slot.way, Way::EraFirst | Way::EraLast) {
        assert!(moved.parted.0 > 1 && moved.parted.1 > 1, "{moved:?}");
    }
}

fn judge(work: &Work, stays: &[&Stay], ran: Duration) {
    let moving = work.tally(|attempt| attempt.group > 0);
    let others = work.tally(|attempt| attempt.group == 0);
    let verdict = work.witness.verdict();
    let unavailable = |_, answer| answer == Answer::Refused(ErrorReason::StoreUnavailable);
    figures(&format!(
        "cluster_migration: {} s, leases kept={} unavailable={} visits={} overlaps={} regressions={}",
        ran.as_secs(),
        stays.len(),
        moving.count(unavailable),
        verdict.visits,
        verdict.overlaps,
        verdict.regressions
    ));
    figures(&format!("cluster_migration: in slots that moved: {moving}"));
    figures(&format!("cluster_migration: in others: {others}"));
    for stay in stays {
        assert!(stay.lost.is_none(), "{stay:?}");
    }
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
    assert_eq!(others.failed(), 0, "slots that stay lose no call");
    assert!(others.is_prompt(), "slots that stay wait for nothing");
    assert_eq!(moving.count(is_wrong), 0, "wrong answers");
    let per_second = others.grants() as u64 / ran.as_secs().max(1);
    assert!(
        per_second >= 100,
        "too little happened: {per_second} grants/s"
    );
}

/// Only what a slot's move explains: a renewal waits until the former master is known to have given the slot away,
/// and neither it nor a release for a quarantine.
fn is_wrong(verb: Verb, answer: Answer) -> bool {
    match answer {
        Answer::Done => false,
        Answer::Broken => true,
        Answer::Refused(ErrorReason::StoreUnavailable) => false,
        Answer::Refused(ErrorReason::StoreRecovering) => verb == Verb::Release,
        Answer::Refused(ErrorReason::WaitTimeout) => verb != Verb::Acquire,
        Answer::Refused(_) => true,
    }
}
