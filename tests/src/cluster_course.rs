//! What every cluster goes through with its brokers, whatever its servers are called and however
//! they are guarded: all masters serve, a slot moves, a master dies.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::{sleep, timeout};

use crate::{
    client::{AcquireCall, Client},
    clock::boottime,
    cluster_site::{
        ClusterSite, QUARANTINE, SHARDS, TTL, locks_in, locks_in_each, shard, slot_of_lock,
    },
    cluster_work::{Answer, Attempt, Lock, Stay, Verb, Work},
    scale::figures,
    until::until,
};

/// Of the second master; goes to the third.
const SLOT: u16 = 9_000;
/// The group of its locks. Others are in the group of their shard.
const MOVING: usize = SHARDS;
/// Callers use the first locks of each group, the last is kept.
const EACH: usize = 3;
const CALLERS: usize = 2;
const HALF_WAY: Duration = Duration::from_millis(500);
const RESUMED_WITHIN: Duration = Duration::from_secs(5);
/// A hand-off is heard at once, and two cores do a lot at that moment.
const HEARD_WITHIN: Duration = Duration::from_secs(2);

/// Moments of it.
struct Course {
    killed: Duration,
    promoted: Duration,
    handed_on: Duration,
}

/// Has two brokers serve the cluster through all of it, and judges what their callers saw.
pub async fn runs_its_course(site: &mut ClusterSite, what: &str) {
    let work = Work::new(locks(), &site.addrs());
    let groups: Vec<Vec<usize>> = (0..=MOVING)
        .map(|group| (group * EACH..(group + 1) * EACH).collect())
        .collect();
    let callers = groups.iter().flat_map(|locks| {
        let work = &work;
        (0..CALLERS).map(move |index| work.call(&locks[..EACH - 1], index))
    });
    let kept = groups.iter().map(|locks| locks[EACH - 1]);
    let kept = kept.map(|lock| work.keep(lock, lock, &work.stop));
    let (_, kept, course) = tokio::join!(join_all(callers), join_all(kept), happens(site, &work));
    // A fail-over that took half of a validity may leave too little of it for a renewal.
    let failed_over = course.promoted - course.killed;
    let is_excused = |stay: &Stay| stay.group == 0 && failed_over > TTL / 2;
    let lost = kept.iter().filter(|stay| stay.lost.is_some());
    let lost: Vec<_> = lost.filter(|stay| !is_excused(stay)).collect();
    let of = |group: usize| work.tally(|attempt| attempt.group == group);
    let moving = of(MOVING);
    let others = work.tally(|attempt| !is_hit(attempt));
    let verdict = work.witness.verdict();
    figures(&format!(
        "{what}: handed on after {} ms, promoted after {} ms; dead master: {}; moving slot: {moving}; others: {others}",
        course.handed_on.as_millis(),
        failed_over.as_millis(),
        of(0)
    ));
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
    assert!(lost.is_empty(), "{lost:?}");
    assert!(others.done() > 0 && others.failed() == 0, "{others}");
    let not_renewed = moving.count(|verb, answer| verb == Verb::Renew && answer != Answer::Done);
    assert_eq!(not_renewed, 0, "the slot is followed: {moving}");
}

/// Whether the slot's move or the master's death explains a refusal.
fn is_hit(attempt: &Attempt) -> bool {
    attempt.group == 0 || attempt.group == MOVING
}

async fn happens(site: &mut ClusterSite, work: &Work) -> Course {
    sleep(HALF_WAY).await;
    let handed_on = hand_on(site).await;
    let mut migration = site.cluster.begin_migration(SLOT, 2).await;
    migration.move_all().await;
    sleep(HALF_WAY).await;
    migration.finish().await;
    let given = boottime();
    sleep(HALF_WAY).await;
    let killed = boottime();
    site.cluster.kill(0).await;
    let next = site.cluster.promoted(*shard(0).start(), 0).await;
    let promoted = boottime();
    assert!(next >= SHARDS, "a replica");
    let again = async |group: usize, since: Duration| {
        let within = since + QUARANTINE + RESUMED_WITHIN;
        let granted = until("grants again", async || {
            let locks = group * EACH..(group + 1) * EACH - 1;
            let mut granted = locks.filter_map(|lock| work.granted_after(lock, since));
            granted.next()
        });
        let granted = granted.await;
        assert!(granted <= within, "{:?}", granted - since);
    };
    tokio::join!(again(MOVING, given), again(0, promoted));
    work.stop.cancel();
    Course {
        killed,
        promoted,
        handed_on,
    }
}

/// From one broker to the other; how long that took.
async fn hand_on(site: &ClusterSite) -> Duration {
    let client = Client::new("handed", &site.addrs(), 0);
    let name = locks_in(&shard(2), "handed", 1).remove(0);
    let call = AcquireCall::new(&name, TTL, Duration::ZERO);
    let held = client.acquire_at(0, &call).await.expect("it is free");
    let waiting = client.open_at(1, &AcquireCall::new(&name, TTL, TTL));
    client.queued_at(0, &name, 1).await;
    let released = boottime();
    client.release_at(0, &held).await.expect("it is ours");
    let granted = timeout(HEARD_WITHIN, waiting).await;
    let granted = granted.expect("heard in time").expect("no panic");
    let handed_on = boottime() - released;
    let next = granted.expect("granted");
    client.release_at(1, &next).await.expect("it is theirs");
    handed_on
}

fn locks() -> Vec<Lock> {
    let shards = (0..SHARDS).map(|index| {
        let names = locks_in(&shard(index), "course", EACH + 1).into_iter();
        let stay = names.filter(|name| slot_of_lock(name) != SLOT);
        stay.take(EACH).collect()
    });
    let moving = locks_in_each(&[SLOT], "moving", EACH);
    let groups: Vec<Vec<String>> = shards.chain(moving).collect();
    let groups = groups.into_iter().enumerate();
    let locks = groups.flat_map(|(group, names)| {
        let names = names.into_iter();
        names.map(move |name| Lock { name, group })
    });
    locks.collect()
}
