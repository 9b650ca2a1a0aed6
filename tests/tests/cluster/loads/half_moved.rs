//! Masters that die while a slot is on its way between them: no lock is given twice, what was not on
//! its way goes on, and in the end the slot is served again.

use std::time::Duration;

use futures::future::join_all;
use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    broker_process::KEY_PREFIX,
    client::{AcquireCall, Client, Held},
    clock::boottime,
    cluster::{Migration, tag_in},
    cluster_site::{ClusterSite, QUARANTINE, TTL, locks_in, locks_in_each, quick, shard},
    cluster_work::{Answer, Attempt, Lock, Stay, Verb, Work},
    scale::figures,
    until::until,
    witness::{Share, Visit},
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

const BROKERS: usize = 2;
/// Of the first master, on its way to the second.
const SLOT: u16 = 4_000;
const SOURCE: usize = 0;
const TARGET: usize = 1;
/// Groups of locks: of a master that has no part in it, those of the slot that move, and those that
/// are left.
const OTHERS: usize = 0;
const MOVED: usize = 1;
const LEFT: usize = 2;
/// In each group: callers have two, one is held by somebody who asks no more after the death, one is
/// kept while somebody waits for it.
const EACH: usize = 4;
const RELIED_ON: usize = 2;
const KEPT: usize = 3;
const CALLERS: usize = 2;
const RENEW_EVERY: Duration = Duration::from_millis(200);
const SNATCH_EVERY: Duration = Duration::from_millis(100);
const CALM: Duration = Duration::from_millis(500);
const RESUMED_WITHIN: Duration = Duration::from_secs(5);
/// The broker answers within a second; two cores with three clusters may stand still for as long.
const ANSWERED: Duration = Duration::from_secs(3);
/// Two clocks are read, and whole milliseconds counted.
const ROUNDED_OFF: Duration = Duration::from_millis(20);

/// Moments of a case.
struct Course {
    killed: Duration,
    /// When the slot was about to have one master for good.
    settled: Duration,
    /// When all locks had been granted again that callers take.
    again: Duration,
}

/// Side by side: most of the time they wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_dies_gives_no_lock_twice() {
    tokio::join!(
        the_target_dies_with_the_era_and_the_slot_stays(),
        the_target_dies_and_its_replica_gets_the_rest()
    );
}

async fn the_target_dies_with_the_era_and_the_slot_stays() {
    let mut site = ClusterSite::start(quick(), BROKERS).await;
    let work = Work::new(locks(), &site.addrs());
    let dead = CancellationToken::new();
    let happens = async {
        in_use(&work).await;
        let mut migration = site.cluster.begin_migration(SLOT, TARGET).await;
        move_half(&mut migration, &work, true).await;
        drop(migration);
        let killed = boottime();
        dead.cancel();
        site.cluster.kill(TARGET).await;
        let settled = boottime();
        let mut source = site.cluster.connect(SOURCE).await;
        let stable = ["CLUSTER", "SETSLOT", &SLOT.to_string(), "STABLE"];
        source.must(&stable).await;
        let next = site.cluster.promoted(*shard(TARGET).start(), TARGET).await;
        assert_ne!(next, TARGET);
        let again = granted_again(&work, settled).await;
        Course {
            killed,
            settled,
            again,
        }
    };
    let (course, kept) = work_on(&work, &dead, happens).await;
    judge(&work, "target dies with the era, STABLE", &course, &kept);
    waits_out_the_quarantine(&work, &course, &[MOVED, LEFT]);
    assert!(is_kept(&kept, LEFT), "{kept:?}");
}

async fn the_target_dies_and_its_replica_gets_the_rest() {
    let mut site = ClusterSite::start(quick(), BROKERS).await;
    let work = Work::new(locks(), &site.addrs());
    let dead = CancellationToken::new();
    let happens = async {
        in_use(&work).await;
        let mut migration = site.cluster.begin_migration(SLOT, TARGET).await;
        move_half(&mut migration, &work, false).await;
        drop(migration);
        let killed = boottime();
        dead.cancel();
        site.cluster.kill(TARGET).await;
        let next = site.cluster.promoted(*shard(TARGET).start(), TARGET).await;
        // Nobody looks after it for a while.
        sleep(CALM).await;
        let halves = [MOVED, LEFT]
            .map(|half| work.tally(|attempt| attempt.group == half && attempt.begun > killed));
        let mut migration = site.cluster.begin_migration(SLOT, next).await;
        migration.move_all().await;
        let settled = boottime();
        migration.finish().await;
        let again = granted_again(&work, settled).await;
        let course = Course {
            killed,
            settled,
            again,
        };
        (course, halves)
    };
    let ((course, [moved, left]), kept) = work_on(&work, &dead, happens).await;
    figures(&format!(
        "cluster_half_moved while the target was dead: moved: {moved}; left: {left}"
    ));
    assert!(left.done() > 0, "what was not moved goes on: {left}");
    assert_eq!(left.failed(), 0, "what was not moved goes on: {left}");
    judge(
        &work,
        "target dies, finished at its replica",
        &course,
        &kept,
    );
    waits_out_the_quarantine(&work, &course, &[MOVED, LEFT]);
    assert!(is_kept(&kept, LEFT), "{kept:?}");
}

/// Only a broker that followed locks to the target can tell: the source has its era, and never lost anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_stays_after_its_target_died_grants_no_lock_twice() {
    let mut site = ClusterSite::start(quick(), BROKERS).await;
    let work = Work::new(locks(), &site.addrs());
    let dead = CancellationToken::new();
    let happens = async {
        in_use(&work).await;
        let mut migration = site.cluster.begin_migration(SLOT, TARGET).await;
        move_half(&mut migration, &work, false).await;
        drop(migration);
        let killed = boottime();
        dead.cancel();
        site.cluster.kill(TARGET).await;
        let settled = boottime();
        let mut source = site.cluster.connect(SOURCE).await;
        let stable = ["CLUSTER", "SETSLOT", &SLOT.to_string(), "STABLE"];
        source.must(&stable).await;
        let again = granted_again(&work, settled).await;
        Course {
            killed,
            settled,
            again,
        }
    };
    let (course, kept) = work_on(&work, &dead, happens).await;
    let what = "target dies without the era, STABLE";
    judge(&work, what, &course, &kept);
    waits_out_the_quarantine(&work, &course, &[MOVED]);
    assert!(is_kept(&kept, LEFT), "{kept:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_dies_without_the_era_gives_no_lock_twice() {
    let mut site = ClusterSite::start(quick(), BROKERS).await;
    let work = Work::new(locks(), &site.addrs());
    let dead = CancellationToken::new();
    let happens = async {
        in_use(&work).await;
        let mut migration = site.cluster.begin_migration(SLOT, TARGET).await;
        move_half(&mut migration, &work, true).await;
        drop(migration);
        let killed = boottime();
        dead.cancel();
        site.cluster.kill(SOURCE).await;
        let next = site.cluster.promoted(SLOT + 1, SOURCE).await;
        assert_ne!(next, SOURCE);
        // The target believes still that the slot is to come from the dead one.
        let again = site.cluster.begin_migration_between(SLOT, next, TARGET);
        let mut migration = again.await.replacing();
        migration.move_all().await;
        let settled = boottime();
        migration.finish().await;
        let again = granted_again(&work, settled).await;
        Course {
            killed,
            settled,
            again,
        }
    };
    let (course, kept) = work_on(&work, &dead, happens).await;
    judge(
        &work,
        "source dies without the era, finished",
        &course,
        &kept,
    );
    waits_out_the_quarantine(&work, &course, &[MOVED, LEFT]);
}

/// Three groups of locks.
fn locks() -> Vec<Lock> {
    let mut of_slot = locks_in_each(&[SLOT], "half", 2 * EACH).remove(0);
    let left = of_slot.split_off(EACH);
    let groups = [locks_in(&shard(2), "others", EACH), of_slot, left];
    let locks = groups.into_iter().enumerate().flat_map(|(group, names)| {
        let of_group = move |name| Lock { name, group };
        names.into_iter().map(of_group)
    });
    locks.collect()
}

/// Returns when every kept lock has its keeper and its rival, and callers have been busy a while.
async fn in_use(work: &Work) {
    for group in [OTHERS, MOVED, LEFT] {
        work.line_of(group * EACH + KEPT, 1).await;
    }
    sleep(CALM).await;
}

/// Moves the records of one group, and the era or not, and lets brokers meet that.
async fn move_half(migration: &mut Migration<'_>, work: &Work, with_era: bool) {
    let moving = work.locks.iter().filter(|lock| lock.group == MOVED);
    let keys = moving.map(|lock| format!("{KEY_PREFIX}{{default:{}}}", lock.name));
    let era = with_era.then(|| format!("{KEY_PREFIX}era{}", tag_in(SLOT)));
    migration
        .move_keys(&keys.chain(era).collect::<Vec<_>>())
        .await;
    let left = migration.keys_left().await.len();
    assert!(left >= EACH, "{left} keys are left");
    sleep(CALM).await;
}

/// Everybody works until `happens` is over; what became of the leases that were kept.
async fn work_on<T>(
    work: &Work,
    dead: &CancellationToken,
    happens: impl Future<Output = T>,
) -> (T, Vec<Stay>) {
    let groups = [OTHERS, MOVED, LEFT].map(|group| group * EACH);
    let lists: Vec<Vec<usize>> = groups
        .iter()
        .map(|first| (*first..first + RELIED_ON).collect())
        .collect();
    let callers = lists
        .iter()
        .flat_map(|locks| (0..CALLERS).map(move |index| work.call(locks, index)));
    let reliers = groups.map(|first| rely(work, first + RELIED_ON, dead));
    let kept = groups.map(|first| work.keep(first + KEPT, first + KEPT, &work.stop));
    // Whoever waits for a lease that is lost gets the lock when it may.
    let snatchers = groups
        .iter()
        .flat_map(|first| [RELIED_ON, KEPT].map(|lock| snatch(work, first + lock)));
    let rivals = groups.map(async |first| {
        work.line_of(first + KEPT, 0).await;
        let wait = async || work.wait_behind(first + KEPT, first + KEPT + 1).await;
        // A broker that has not settled the slot yet sends callers away for a moment.
        while wait().await.is_none() && !work.stop.is_cancelled() {
            sleep(SNATCH_EVERY).await;
        }
    });
    let happens = async {
        let happened = happens.await;
        renews_again(work).await;
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

/// Holds a lock until a master dies, and relies on it then for as long as it may.
async fn rely(work: &Work, lock: usize, dead: &CancellationToken) {
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
    saw(work, lock, &held, entered);
}

fn saw(work: &Work, lock: usize, held: &Held, entered: Duration) {
    work.witness.record(Visit {
        lock,
        share: Share::ALL,
        token: held.token(),
        entered,
        ended: boottime().min(held.trusted_until()),
    });
}

/// Takes a lock out of line whenever it is to be had, which it is not while somebody relies on it.
async fn snatch(work: &Work, lock: usize) {
    let client = Client::new("snatcher", work.addrs(), 0);
    work.line_of(lock, usize::from(lock % EACH == KEPT)).await;
    while !work.stop.is_cancelled() {
        let call = AcquireCall::new(&work.locks[lock].name, TTL, Duration::ZERO);
        if let Ok(held) = client.acquire_at(0, &call).await {
            let entered = boottime();
            sleep(SNATCH_EVERY).await;
            saw(work, lock, &held, entered);
            // What cannot be given back ends by itself.
            let _ = client.release_at(0, &held).await;
        }
        sleep(SNATCH_EVERY).await;
    }
}

/// When all locks of the slot that callers take had been granted after a moment.
async fn granted_again(work: &Work, since: Duration) -> Duration {
    let locks = [MOVED, LEFT].map(|group| group * EACH..group * EACH + RELIED_ON);
    let granted = locks.into_iter().flatten().map(async |lock| {
        until("grants in the slot", async || {
            work.granted_after(lock, since + QUARANTINE - ROUNDED_OFF)
        })
        .await
    });
    let granted = join_all(granted).await.into_iter().max();
    granted.expect("the slot has locks")
}

/// Returns once every broker has renewed a new lease in the slot, which must not take long: most leases that were
/// held before are lost too soon to show whether renewals go on.
async fn renews_again(work: &Work) {
    let client = Client::new("renewer", work.addrs(), 0);
    let names = locks_in_each(&[SLOT], "renewed", work.addrs().len()).remove(0);
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

fn is_kept(kept: &[Stay], group: usize) -> bool {
    let mut of_group = kept.iter().filter(|stay| stay.group == group);
    of_group.all(|stay| stay.lost.is_none())
}

/// What is so in every case.
fn judge(work: &Work, what: &str, course: &Course, kept: &[Stay]) {
    let of = |group: usize| {
        work.tally(|attempt| attempt.group == group && attempt.ended > course.killed)
    };
    let verdict = work.witness.verdict();
    let lost: Vec<_> = kept.iter().filter(|stay| stay.lost.is_some()).collect();
    let after = course.again - course.settled;
    figures(&format!(
        "cluster_half_moved {what}: settled {} ms after the death, all granted {} ms later (Q={} ms), visits={} \
         overlaps={} leases lost={}; moved: {}; left: {}; others: {}",
        (course.settled - course.killed).as_millis(),
        after.as_millis(),
        QUARANTINE.as_millis(),
        verdict.visits,
        verdict.overlaps,
        lost.len(),
        of(MOVED),
        of(LEFT),
        of(OTHERS)
    ));
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
    assert!(after <= QUARANTINE + RESUMED_WITHIN, "{after:?}");
    let others = work.tally(|attempt| attempt.group == OTHERS);
    assert!(others.done() > 0 && others.failed() == 0, "{others}");
    assert!(is_kept(kept, OTHERS), "{lost:?}");
    let attempts = work.attempts();
    let wrong: Vec<_> = attempts
        .iter()
        .filter(|attempt| is_wrong(attempt, course))
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Nothing is granted between the moment when the slot was settled and the end of the quarantine.
fn waits_out_the_quarantine(work: &Work, course: &Course, groups: &[usize]) {
    let open = course.settled + QUARANTINE - ROUNDED_OFF;
    let too_soon = work.tally(|attempt| {
        let in_quarantine = |granted| granted > course.settled && granted < open;
        groups.contains(&attempt.group) && attempt.granted.is_some_and(in_quarantine)
    });
    assert_eq!(too_soon.grants(), 0, "{too_soon}");
}

/// What neither the death nor the move explains, or what took too long to say.
fn is_wrong(attempt: &Attempt, course: &Course) -> bool {
    let is_slow = attempt.ended - attempt.begun > ANSWERED;
    match attempt.answer {
        Answer::Done => false,
        Answer::Broken => true,
        Answer::Refused(ErrorReason::StoreUnavailable) => is_slow,
        Answer::Refused(ErrorReason::StoreRecovering) => match attempt.verb {
            Verb::Acquire => false,
            // A new master renews once the former one is known to be out, which does not take long.
            Verb::Renew => is_slow || attempt.begun > course.settled + RESUMED_WITHIN,
            Verb::Release => true,
        },
        Answer::Refused(ErrorReason::WaitTimeout) => attempt.verb != Verb::Acquire,
        // A lease that died with its master, or whose time passed meanwhile.
        Answer::Refused(ErrorReason::LeaseNotFound | ErrorReason::LeaseExpired) => {
            attempt.group == OTHERS
        }
        Answer::Refused(_) => true,
    }
}
