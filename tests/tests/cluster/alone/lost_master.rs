//! Loss of one of three masters of a Redis Cluster. No two clients rely on a lock at a time, tokens
//! rise, calls to other shards succeed, and grants resume within a bounded time.

use std::{collections::HashMap, time::Duration};

use futures::future::join_all;
use leasehold_proto::v1::ErrorReason;
use leasehold_tests::{
    client::unary::Client,
    clock::boottime,
    cluster::{
        deployment::{ClusterDeployment, ClusterOptions},
        fixture::{
            ClusterFixture, QUARANTINE, SHARDS, fast_failover_options, initial_slots_of,
            lock_names_in,
        },
        grant_probe::{GrantStartTimes, MasterFailover, Probe},
        workload::{Attempt, CallKind, CallResult, Lock, LongHold, Workload},
    },
    load::{
        callers::{LockKind, run_without_locks},
        grant_rate::GrantRate,
        mutual_exclusion_oracle::Oracle,
    },
    redis::server::RestartData,
    scale::{print_figures, scaled_count},
};
use tokio::time::sleep;

const BROKERS: usize = 2;
/// Per shard: callers and the locks that they share, locks that two clients each hold until the end
/// of the validity, and leases that are renewed by calls and on streams, each with a queued rival.
const CALLERS: usize = 8;
const HOT: usize = 3;
const HELD: usize = 3;
const KEPT: usize = 2;
const QUIET_PERIOD: Duration = Duration::from_secs(2);
const DOWN: Duration = Duration::from_secs(2);
/// Time within which leases of a shard must be renewable again in order to be kept. A lease is
/// valid for 4 s after a renewal, and brokers soon detect that renewals are possible again. A
/// failed election in Redis takes 4 s, and the leases are lost then.
const RENEWABLE_WITHIN: Duration = Duration::from_millis(2_500);
const RESUMED_WITHIN: Duration = Duration::from_secs(5);
/// Maximum time that a caller waits, whatever the store does.
const PROMPT: Duration = Duration::from_secs(1);
/// Time for the response to travel, which the broker's time limit does not include.
const SLACK: Duration = Duration::from_millis(250);
const BLIND_CHECK: Duration = Duration::from_secs(1);
/// Slot whose master is lost. Its shard is the disturbed group.
const SLOT: u16 = 0;
const LOST_SLOT: usize = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Killed,
    /// The master is killed and has no replica.
    KilledAlone,
    Stopped,
    /// The master is isolated from the other nodes, but not from brokers.
    Isolated,
}

/// Times and effects of one lost master.
#[derive(Debug)]
struct LostMaster {
    from: Duration,
    /// Time at which the fault was complete.
    hit: Duration,
    /// Time at which the shard had a master again.
    back: Duration,
    /// Time from which the former master certainly grants nothing.
    demoted: Duration,
    /// Grants of a lock that was unused before the fault.
    probe: Probe,
    /// Times from which the promoted master may grant the locks of callers.
    openings: GrantStartTimes,
    /// Additional text for the report.
    effect: String,
}

/// Runs alone: it measures grants per second, and waits in shards without a fault.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_master_is_replaced_and_other_shards_notice_nothing() {
    run_fault(Fault::Killed, fast_failover_options()).await;
}

/// Runs alone: it measures grants per second, and how soon calls without a master fail.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_without_a_replica_waits_for_its_master() {
    let alone = ClusterOptions {
        replicas: 0,
        ..fast_failover_options()
    };
    run_fault(Fault::KilledAlone, alone).await;
}

/// Runs alone: it measures grants per second, and waits in shards without a fault.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_master_is_replaced_and_resumes_as_a_replica() {
    run_fault(Fault::Stopped, fast_failover_options()).await;
}

/// Runs alone: it measures grants per second, and waits in shards without a fault.
#[tokio::test(flavor = "multi_thread")]
async fn an_isolated_master_grants_no_lock_twice() {
    let gated = ClusterOptions {
        has_partition_proxies: true,
        ..fast_failover_options()
    };
    run_fault(Fault::Isolated, gated).await;
}

/// Runs alone: it measures overlaps within a second, at the pace of the other cases.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_clients_without_locks_overlap() {
    let oracle = std::sync::Arc::new(Oracle::new(SHARDS * HOT));
    run_without_locks(
        SHARDS * CALLERS,
        &oracle,
        |_| LockKind::Exclusive,
        BLIND_CHECK,
    )
    .await;
    assert!(oracle.verdict().overlaps > 0);
}

async fn run_fault(fault: Fault, options: ClusterOptions) {
    let mut fixture = ClusterFixture::start(options, BROKERS).await;
    let addrs = fixture.addrs();
    let groups: Vec<_> = (0..SHARDS).map(Group::of).collect();
    let locks = groups.iter().flat_map(|group| group.locks.clone());
    let work = Workload::new(locks.collect(), &addrs);
    let started_at = boottime();
    let callers = groups.iter().flat_map(|group| {
        let locks = &group.indexes[..HOT];
        let work = &work;
        (0..CALLERS).map(move |index| work.run_caller(locks, index))
    });
    let sitters = groups.iter().flat_map(|group| {
        let (locks, work) = (&group.indexes[HOT..HOT + HELD], &work);
        let twice = locks.iter().chain(locks).enumerate();
        twice.map(move |(index, lock)| work.run_non_renewing_holder(*lock, index))
    });
    let by_calls = groups.iter().flat_map(|group| group.half_of_locks(0));
    let by_calls = by_calls.map(|lock| work.hold_unary(lock, lock, &work.stop));
    let on_streams = groups.iter().flat_map(|group| group.half_of_locks(KEPT));
    let on_streams = on_streams.map(|lock| work.hold_on_stream(lock, lock, &work.stop));
    let rivals = groups
        .iter()
        .flat_map(|group| group.half_of_locks(0).chain(group.half_of_locks(KEPT)));
    let rivals = rivals.map(|lock| queue_rival(&work, lock));
    let probe = Client::new("probe", &addrs, 0);
    let faults = async {
        let mut turns = Vec::new();
        for _ in 0..scaled_count(5, 1) {
            sleep(QUIET_PERIOD).await;
            turns.push(lose_master(&mut fixture.cluster, fault, &probe, &work.locks).await);
        }
        sleep(QUIET_PERIOD).await;
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
    let holds: Vec<_> = by_calls.into_iter().chain(on_streams).collect();
    assert_results(fault, &work, &turns, (started_at, boottime()));
    assert_long_holds(&turns, &holds, &rivals);
}

impl LostMaster {
    /// Returns the time until leases of the shard could be renewed again: the shard had a master,
    /// and the former master granted nothing.
    fn renewable(&self) -> Duration {
        self.back.max(self.demoted) - self.from
    }
}

struct Group {
    locks: Vec<Lock>,
    indexes: Vec<usize>,
}

impl Group {
    fn of(shard_index: usize) -> Self {
        let each = HOT + HELD + 2 * KEPT;
        let names = lock_names_in(&initial_slots_of(shard_index), "load", each);
        let lock = |name| Lock {
            name,
            group: shard_index,
        };
        Self {
            locks: names.into_iter().map(lock).collect(),
            indexes: (shard_index * each..(shard_index + 1) * each).collect(),
        }
    }

    /// Returns the locks of half of the renewed leases, beginning with the lock at `from`.
    fn half_of_locks(&self, from: usize) -> impl Iterator<Item = usize> {
        let first = HOT + HELD + from;
        self.indexes[first..first + KEPT].iter().copied()
    }
}

/// Enqueues a rival once the lock is held and renewed.
async fn queue_rival(work: &Workload, lock: usize) -> (usize, Option<i64>) {
    work.wait_for_queue_length(lock, 0).await;
    let granted = work.wait_for_grant(lock, lock).await;
    (lock, granted.map(|(_, token)| token))
}

async fn lose_master(
    cluster: &mut ClusterDeployment,
    fault: Fault,
    client: &Client,
    locks: &[Lock],
) -> LostMaster {
    cluster.wait_until_ready().await;
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
        Fault::Killed | Fault::Stopped => next = cluster.wait_for_promotion(SLOT, master).await,
        Fault::KilledAlone => {
            cluster.wait_until_failed(master).await;
            sleep(DOWN).await;
            cluster.restart(master, RestartData::Kept).await;
        }
        Fault::Isolated => {
            let writes = cluster.write_until_rejected(master, SLOT);
            let (writes, promoted) = tokio::join!(writes, cluster.wait_for_promotion(SLOT, master));
            assert!(writes.rejection.starts_with("CLUSTERDOWN"), "{writes:?}");
            assert!(writes.accepted > 0, "it took writes at first");
            effect = format!("; {writes:?}");
            next = promoted;
        }
    }
    let back = boottime();
    let fail_over = MasterFailover::new(cluster, master, next);
    let name = lock_names_in(&initial_slots_of(LOST_SLOT), &format!("probe/{from:?}"), 1).remove(0);
    // The former master resumes at the same moment, and brokers may still have the old slot map.
    // Either master may grant first.
    let probe = fail_over.probe(client, 0, &name);
    let mended = async {
        match fault {
            Fault::Killed => cluster.restart(master, RestartData::Kept).await,
            Fault::KilledAlone => {}
            Fault::Stopped => cluster.server(master).process().resume(),
            Fault::Isolated => cluster.heal(),
        }
        // A killed process has granted nothing since its end.
        let demoted = match fault {
            Fault::Killed | Fault::KilledAlone => hit,
            Fault::Stopped | Fault::Isolated => cluster.wait_for_demotion(master).await,
        };
        cluster.wait_until_ready().await;
        demoted
    };
    let (probe, demoted) = tokio::join!(probe, mended);
    LostMaster {
        from,
        hit,
        back,
        demoted,
        probe,
        openings: fail_over.read_grant_times(locks, LOST_SLOT).await,
        effect,
    }
}

fn assert_long_holds(turns: &[LostMaster], holds: &[LongHold], rivals: &[(usize, Option<i64>)]) {
    let rivals: HashMap<_, _> = rivals.iter().copied().collect();
    let mut lost_of_hit = 0;
    for hold in holds {
        let rival = rivals[&hold.lock].expect("every rival gets the lock in the end");
        assert!(
            rival > hold.token,
            "a rival's token: {rival} after {hold:?}"
        );
        match &hold.lost {
            None => {}
            Some(_) if hold.group == LOST_SLOT => lost_of_hit += 1,
            Some(_) => panic!("lost in a shard that nothing happened to: {hold:?}"),
        }
    }
    let of_hit = holds.iter().filter(|hold| hold.group == LOST_SLOT).count();
    let renewable = turns.iter().map(LostMaster::renewable).max();
    let renewable = renewable.expect("a turn");
    print_figures(&format!(
        "cluster: leases kept throughout: {} of {of_hit} in the shard, all {} in the others; renewable after {} ms",
        of_hit - lost_of_hit,
        holds.len() - of_hit,
        renewable.as_millis()
    ));
    if renewable <= RENEWABLE_WITHIN {
        assert!(lost_of_hit < of_hit, "renewals go on after the promotion");
    }
}

fn assert_results(
    fault: Fault,
    work: &Workload,
    turns: &[LostMaster],
    (started_at, ended): (Duration, Duration),
) {
    let mut out = Duration::ZERO;
    for turn in turns {
        turn.probe.check(turn.hit, turn.demoted);
        turn.openings.check(work, turn.hit, turn.demoted);
        let after = |end: Duration| (end - turn.from).as_millis();
        let last = last_granted(work, turn);
        print_figures(&format!(
            "cluster {fault:?}: a master again after {} ms, grants after {} ms, of every lock in use after {} ms \
             (Q={} ms), of an unused lock by the former master={}{}",
            after(turn.back),
            after(turn.probe.first_promoted_grant()),
            after(last),
            QUARANTINE.as_millis(),
            turn.probe.grants.len() - 1,
            turn.effect
        ));
        let late = turn.probe.first_promoted_grant().max(last) - turn.back;
        assert!(late <= QUARANTINE + RESUMED_WITHIN, "grants after {late:?}");
        out += turn.probe.first_promoted_grant() - turn.from;
    }
    let in_fault = |attempt: &Attempt| {
        let mut windows = turns
            .iter()
            .map(|turn| turn.from..turn.probe.first_promoted_grant());
        windows.any(|window| window.contains(&attempt.ended_at))
    };
    let all = work.count_attempts(|_| true);
    let during = work.count_attempts(in_fault);
    let calm = work.count_attempts(|attempt| !in_fault(attempt) && attempt.ended_at < ended);
    let per_second = GrantRate::new(calm.grants(), ended - started_at - out);
    let hit = work.count_attempts(|attempt| attempt.group == LOST_SLOT && in_fault(attempt));
    let others = work.count_attempts(|attempt| attempt.group != LOST_SLOT);
    let verdict = work.oracle.verdict();
    print_figures(&format!(
        "cluster {fault:?}: {} s, granted={} calm_grants_per_s={per_second} done_in_faults={} of {} visits={} \
         overlaps={} regressions={}",
        (ended - started_at).as_secs(),
        all.grants(),
        during.succeeded(),
        all.succeeded(),
        verdict.uses,
        verdict.overlaps,
        verdict.regressions
    ));
    print_figures(&format!("cluster {fault:?}: in the shard meanwhile: {hit}"));
    print_figures(&format!("cluster {fault:?}: in the others: {others}"));
    assert_eq!((verdict.overlaps, verdict.regressions), (0, 0));
    assert_eq!(others.failed(), 0, "other shards lose no call");
    assert!(others.is_prompt(), "other shards wait");
    assert_eq!(
        all.count(is_unexplained),
        0,
        "answers that no caller can act on"
    );
    // The writes have shown that an isolated master rejects commands. Calls may miss that short
    // period.
    if fault != Fault::Isolated {
        assert!(hit.count(is_unavailable) > 0, "the loss took effect");
    }
    per_second.assert_sufficient();
    assert!(
        during.succeeded() * 5 >= all.succeeded(),
        "too little during faults"
    );
    if fault == Fault::KilledAlone {
        assert_fails_in_time(work, turns);
    }
}

/// Asserts that without a master every call to the shard fails within a second.
fn assert_fails_in_time(work: &Workload, turns: &[LostMaster]) {
    for turn in turns {
        let meanwhile = turn.hit..turn.back - PROMPT;
        let in_vain = work.count_attempts(|attempt| {
            attempt.group == LOST_SLOT && meanwhile.contains(&attempt.started_at)
        });
        print_figures(&format!("cluster without a replica: meanwhile {in_vain}"));
        assert!(in_vain.failed() > CALLERS, "they go on asking");
        assert_eq!(in_vain.count(is_unavailable), in_vain.failed());
        assert_eq!(in_vain.succeeded(), 0, "no caller can have answered");
        assert!(in_vain.slowest <= PROMPT + SLACK, "{:?}", in_vain.slowest);
    }
}

/// Returns the time at which the last of the callers' locks in the shard was granted again.
fn last_granted(work: &Workload, turn: &LostMaster) -> Duration {
    let granted = (0..HOT).map(|lock| work.first_grant_after(lock, turn.demoted));
    let granted: Option<Vec<_>> = granted.collect();
    let granted = granted.expect("every lock is granted again");
    granted.into_iter().max().expect("there are locks")
}

fn is_unavailable(_: CallKind, answer: CallResult) -> bool {
    answer == CallResult::Rejected(ErrorReason::StoreUnavailable)
}

/// Returns true if the result is not permitted. Leases may be lost with their master.
fn is_unexplained(verb: CallKind, answer: CallResult) -> bool {
    match answer {
        CallResult::Succeeded => false,
        CallResult::NoReply => true,
        CallResult::Rejected(reason) => {
            let of_store = [ErrorReason::StoreUnavailable, ErrorReason::StoreRecovering];
            let of_line = [ErrorReason::WaitTimeout, ErrorReason::LeaseExpired];
            let of_loss = [ErrorReason::LeaseNotFound, ErrorReason::LeaseExpired];
            let others = match verb {
                CallKind::Acquire => of_line,
                CallKind::Renew | CallKind::Release => of_loss,
            };
            !of_store.contains(&reason) && !others.contains(&reason)
        }
    }
}
