//! Brokers on a Redis Cluster that loses one of its three masters: nobody trusts a lock that somebody
//! else has, tokens rise, the other shards lose no call, and grants resume in bounded time.

use std::{collections::HashMap, time::Duration};

use futures::future::join_all;
use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    client::Client,
    clock::boottime,
    cluster::{ClusterDeployment, ClusterOptions},
    cluster_probe::{FailOver, Openings, Probe},
    cluster_site::{ClusterSite, QUARANTINE, SHARDS, locks_in, quick, shard},
    cluster_work::{Answer, Attempt, Lock, Stay, Verb, Work},
    load::{Kind, run_without_locks},
    redis_server::Data,
    scale::{count, figures},
    witness::Witness,
};
use tokio::time::sleep;

const BROKERS: usize = 2;
/// In each shard: callers and their locks, locks that are held to the last moment, each wanted by
/// two, and leases that are kept on calls and on streams, each with a rival in line.
const CALLERS: usize = 8;
const HOT: usize = 3;
const HELD: usize = 3;
const KEPT: usize = 2;
const CALM: Duration = Duration::from_secs(2);
const DOWN: Duration = Duration::from_secs(2);
/// A lease is trusted for 4 s after a renewal, and brokers notice soon that they may renew again: leases of a
/// shard that is renewable within this time are kept. A failed election of Redis costs 4 s, and the leases.
const RENEWABLE_WITHIN: Duration = Duration::from_millis(2_500);
const RESUMED_WITHIN: Duration = Duration::from_secs(5);
/// What a caller waits for at most, whatever the store does.
const PROMPT: Duration = Duration::from_secs(1);
/// The broker answers in time, and the answer takes its time to get here.
const SLACK: Duration = Duration::from_millis(250);
const BLIND_CHECK: Duration = Duration::from_secs(1);
/// The slot whose master is hit; its shard is the disturbed group.
const SLOT: u16 = 0;
const HIT: usize = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Killed,
    /// And nobody can take its place.
    KilledAlone,
    Stopped,
    /// From the other nodes; brokers reach it still.
    Isolated,
}

/// One loss of a master.
#[derive(Debug)]
struct Turn {
    from: Duration,
    /// When it had happened.
    hit: Duration,
    /// When the shard had a master again.
    back: Duration,
    /// When the former master was known to grant nothing any more.
    demoted: Duration,
    /// Who granted a lock that nobody had used before, and when.
    probe: Probe,
    /// When the promoted master may first grant what callers use.
    openings: Openings,
    /// What is to be said of it.
    effect: String,
}

/// Runs alone: it measures grants per second, and waits in shards without a fault.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_master_is_replaced_and_other_shards_notice_nothing() {
    survive(Fault::Killed, quick()).await;
}

/// Runs alone: it measures grants per second, and how soon calls without a master fail.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_without_a_replica_waits_for_its_master() {
    let alone = ClusterOptions {
        replicas: 0,
        ..quick()
    };
    survive(Fault::KilledAlone, alone).await;
}

/// Runs alone: it measures grants per second, and waits in shards without a fault.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_master_is_replaced_and_wakes_up_as_nobody() {
    survive(Fault::Stopped, quick()).await;
}

/// Runs alone: it measures grants per second, and waits in shards without a fault.
#[tokio::test(flavor = "multi_thread")]
async fn an_isolated_master_gives_no_lock_twice() {
    let gated = ClusterOptions {
        gated: true,
        ..quick()
    };
    survive(Fault::Isolated, gated).await;
}

/// Runs alone: it measures overlaps within a second, at the pace of the other cases.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_clients_without_locks_overlap() {
    let witness = std::sync::Arc::new(Witness::new(SHARDS * HOT));
    run_without_locks(SHARDS * CALLERS, &witness, |_| Kind::Exclusive, BLIND_CHECK).await;
    assert!(witness.verdict().overlaps > 0);
}

async fn survive(fault: Fault, options: ClusterOptions) {
    let mut site = ClusterSite::start(options, BROKERS).await;
    let addrs = site.addrs();
    let groups: Vec<_> = (0..SHARDS).map(Group::of).collect();
    let locks = groups.iter().flat_map(|group| group.locks.clone());
    let work = Work::new(locks.collect(), &addrs);
    let begun = boottime();
    let callers = groups.iter().flat_map(|group| {
        let locks = &group.indexes[..HOT];
        let work = &work;
        (0..CALLERS).map(move |index| work.call(locks, index))
    });
    let sitters = groups.iter().flat_map(|group| {
        let (locks, work) = (&group.indexes[HOT..HOT + HELD], &work);
        let twice = locks.iter().chain(locks).enumerate();
        twice.map(move |(index, lock)| work.sit(*lock, index))
    });
    let by_calls = groups.iter().flat_map(|group| group.kept(0));
    let by_calls = by_calls.map(|lock| work.keep(lock, lock, &work.stop));
    let on_streams = groups.iter().flat_map(|group| group.kept(KEPT));
    let on_streams = on_streams.map(|lock| work.keep_on_stream(lock, lock, &work.stop));
    let rivals = groups
        .iter()
        .flat_map(|group| group.kept(0).chain(group.kept(KEPT)));
    let rivals = rivals.map(|lock| follow(&work, lock));
    let probe = Client::new("probe", &addrs, 0);
    let faults = async {
        let mut turns = Vec::new();
        for _ in 0..count(5, 1) {
            sleep(CALM).await;
            turns.push(lose_master(&mut site.cluster, fault, &probe, &work.locks).await);
        }
        sleep(CALM).await;
        work.stop.cancel();
        turns
    };
    let (_, _, by_calls, on_streams, rivals, turns) = tokio::join!(
        join_all(callers),
        join_all(sitters),
        join_all(by_calls),
        join_all(on_streams),
        join_all(rivals),
        faults
    );
    let stays: Vec<_> = by_calls.into_iter().chain(on_streams).collect();
    judge(fault, &work, &turns, (begun, boottime()));
    judge_stays(&turns, &stays, &rivals);
}

impl Turn {
    /// When leases of the shard could be renewed again: it had a master, and no former one beside it.
    fn renewable(&self) -> Duration {
        self.back.max(self.demoted) - self.from
    }
}

/// The locks of one shard.
struct Group {
    locks: Vec<Lock>,
    indexes: Vec<usize>,
}

impl Group {
    fn of(shard_index: usize) -> Self {
        let each = HOT + HELD + 2 * KEPT;
        let names = locks_in(&shard(shard_index), "load", each);
        let lock = |name| Lock {
            name,
            group: shard_index,
        };
        Self {
            locks: names.into_iter().map(lock).collect(),
            indexes: (shard_index * each..(shard_index + 1) * each).collect(),
        }
    }

    /// Half of the locks that are kept.
    fn kept(&self, from: usize) -> impl Iterator<Item = usize> {
        let first = HOT + HELD + from;
        self.indexes[first..first + KEPT].iter().copied()
    }
}

/// Joins the line once somebody keeps the lock.
async fn follow(work: &Work, lock: usize) -> (usize, Option<i64>) {
    work.line_of(lock, 0).await;
    let granted = work.wait_behind(lock, lock).await;
    (lock, granted.map(|(_, token)| token))
}

async fn lose_master(
    cluster: &mut ClusterDeployment,
    fault: Fault,
    client: &Client,
    locks: &[Lock],
) -> Turn {
    cluster.ready().await;
    let master = cluster.master_of(SLOT).await;
    let from = boottime();
    match fault {
        Fault::Killed | Fault::KilledAlone => cluster.kill(master).await,
        Fault::Stopped => cluster.server(master).process().pause().await,
        Fault::Isolated => cluster.isolate(master),
    }
    let hit = boottime();
    let mut effect = String::new();
    let mut next = master;
    match fault {
        Fault::Killed | Fault::Stopped => next = cluster.promoted(SLOT, master).await,
        Fault::KilledAlone => {
            cluster.failed(master).await;
            sleep(DOWN).await;
            cluster.restart(master, Data::Kept).await;
        }
        Fault::Isolated => {
            let writes = cluster.write_until_refused(master, SLOT);
            let (writes, promoted) = tokio::join!(writes, cluster.promoted(SLOT, master));
            assert!(writes.refusal.starts_with("CLUSTERDOWN"), "{writes:?}");
            assert!(writes.taken > 0, "it took writes at first");
            effect = format!("; {writes:?}");
            next = promoted;
        }
    }
    let back = boottime();
    let fail_over = FailOver::of(cluster, master, next);
    let name = locks_in(&shard(HIT), &format!("probe/{from:?}"), 1).remove(0);
    // The former master goes on at the same moment, and brokers may still have the old map of the slots: either
    // of the two may grant first.
    let probe = fail_over.probe(client, 0, &name);
    let mended = async {
        match fault {
            Fault::Killed => cluster.restart(master, Data::Kept).await,
            Fault::KilledAlone => {}
            Fault::Stopped => cluster.server(master).process().resume(),
            Fault::Isolated => cluster.heal(),
        }
        // A process that was killed has granted nothing since.
        let demoted = match fault {
            Fault::Killed | Fault::KilledAlone => hit,
            Fault::Stopped | Fault::Isolated => cluster.demoted(master).await,
        };
        cluster.ready().await;
        demoted
    };
    let (probe, demoted) = tokio::join!(probe, mended);
    Turn {
        from,
        hit,
        back,
        demoted,
        probe,
        openings: fail_over.openings(locks, HIT).await,
        effect,
    }
}

fn judge_stays(turns: &[Turn], stays: &[Stay], rivals: &[(usize, Option<i64>)]) {
    let rivals: HashMap<_, _> = rivals.iter().copied().collect();
    let mut lost_of_hit = 0;
    for stay in stays {
        let rival = rivals[&stay.lock].expect("every rival gets the lock in the end");
        assert!(
            rival > stay.token,
            "a rival's token: {rival} after {stay:?}"
        );
        match &stay.lost {
            None => {}
            Some(_) if stay.group == HIT => lost_of_hit += 1,
            Some(_) => panic!("lost in a shard that nothing happened to: {stay:?}"),
        }
    }
    let of_hit = stays.iter().filter(|stay| stay.group == HIT).count();
    let renewable = turns.iter().map(Turn::renewable).max();
    let renewable = renewable.expect("a turn");
    figures(&format!(
        "cluster: leases kept throughout: {} of {of_hit} in the shard, all {} in the others; renewable after {} ms",
        of_hit - lost_of_hit,
        stays.len() - of_hit,
        renewable.as_millis()
    ));
    if renewable <= RENEWABLE_WITHIN {
        assert!(lost_of_hit < of_hit, "renewals go on after the promotion");
    }
}

fn judge(fault: Fault, work: &Work, turns: &[Turn], (begun, ended): (Duration, Duration)) {
    let mut out = Duration::ZERO;
    for turn in turns {
        turn.probe.judge(turn.hit, turn.demoted);
        turn.openings.judge(work, turn.hit, turn.demoted);
        let after = |end: Duration| (end - turn.from).as_millis();
        let last = last_granted(work, turn);
        figures(&format!(
            "cluster {fault:?}: a master again after {} ms, grants after {} ms, of every lock in use after {} ms \
             (Q={} ms), of an unused lock by the former master={}{}",
            after(turn.back),
            after(turn.probe.resumed()),
            after(last),
            QUARANTINE.as_millis(),
            turn.probe.grants.len() - 1,
            turn.effect
        ));
        let late = turn.probe.resumed().max(last) - turn.back;
        assert!(late <= QUARANTINE + RESUMED_WITHIN, "grants after {late:?}");
        out += turn.probe.resumed() - turn.from;
    }
    let in_fault = |attempt: &Attempt| {
        let mut windows = turns.iter().map(|turn| turn.from..turn.probe.resumed());
        windows.any(|window| window.contains(&attempt.ended))
    };
    let all = work.tally(|_| true);
    let during = work.tally(in_fault);
    let calm = work.tally(|attempt| !in_fault(attempt) && attempt.ended < ended);
    let calm_seconds = (ended - begun - out).as_secs().max(1);
    let per_second = calm.grants() as u64 / calm_seconds;
    let hit = work.tally(|attempt| attempt.group == HIT && in_fault(attempt));
    let others = work.tally(|attempt| attempt.group != HIT);
    let verdict = work.witness.verdict();
    figures(&format!(
        "cluster {fault:?}: {} s, granted={} calm_grants_per_s={per_second} done_in_faults={} of {} visits={} \
         overlaps={} regressions={}",
        (ended - begun).as_secs(),
        all.grants(),
        during.done(),
        all.done(),
        verdict.visits,
        verdict.overlaps,
        verdict.regressions
    ));
    figures(&format!("cluster {fault:?}: in the shard meanwhile: {hit}"));
    figures(&format!("cluster {fault:?}: in the others: {others}"));
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
    assert_eq!(others.failed(), 0, "other shards lose no call");
    assert!(others.is_prompt(), "other shards wait");
    assert_eq!(all.count(is_odd), 0, "answers that nobody can act on");
    // That a master which is cut off refuses was seen by writing to it: no call need meet that moment.
    if fault != Fault::Isolated {
        assert!(hit.count(is_unavailable) > 0, "the loss took effect");
    }
    assert!(
        per_second >= 100,
        "too little happened: {per_second} grants/s"
    );
    assert!(during.done() * 5 >= all.done(), "too little during faults");
    if fault == Fault::KilledAlone {
        judge_alone(work, turns);
    }
}

/// Without any master every call of the shard is told so within a second.
fn judge_alone(work: &Work, turns: &[Turn]) {
    for turn in turns {
        let meanwhile = turn.hit..turn.back - PROMPT;
        let in_vain =
            work.tally(|attempt| attempt.group == HIT && meanwhile.contains(&attempt.begun));
        figures(&format!("cluster without a replica: meanwhile {in_vain}"));
        assert!(in_vain.failed() > CALLERS, "they go on asking");
        assert_eq!(in_vain.count(is_unavailable), in_vain.failed());
        assert_eq!(in_vain.done(), 0, "nobody can have answered");
        assert!(in_vain.slowest <= PROMPT + SLACK, "{:?}", in_vain.slowest);
    }
}

/// When the last of the shard's locks that callers use was granted again.
fn last_granted(work: &Work, turn: &Turn) -> Duration {
    let granted = (0..HOT).map(|lock| work.granted_after(lock, turn.demoted));
    let granted: Option<Vec<_>> = granted.collect();
    let granted = granted.expect("every lock is granted again");
    granted.into_iter().max().expect("there are locks")
}

fn is_unavailable(_: Verb, answer: Answer) -> bool {
    answer == Answer::Refused(ErrorReason::StoreUnavailable)
}

/// What a caller must never hear. Leases can be lost with their master.
fn is_odd(verb: Verb, answer: Answer) -> bool {
    match answer {
        Answer::Done => false,
        Answer::Broken => true,
        Answer::Refused(reason) => {
            let of_store = [ErrorReason::StoreUnavailable, ErrorReason::StoreRecovering];
            let of_line = [ErrorReason::WaitTimeout, ErrorReason::LeaseExpired];
            let of_loss = [ErrorReason::LeaseNotFound, ErrorReason::LeaseExpired];
            let others = match verb {
                Verb::Acquire => of_line,
                Verb::Renew | Verb::Release => of_loss,
            };
            !of_store.contains(&reason) && !others.contains(&reason)
        }
    }
}
