//! Mutual exclusion between many clients of three brokers on a RedLock store of five servers. At
//! most two servers at a time are killed, paused, or restarted and without a vote.

use std::{sync::Arc, time::Duration};

use leasehold_tests::{
    broker::process::BrokerProcess,
    clock::boottime,
    load::{
        callers::{Load, LoadOptions, LockKind, run_without_locks},
        fault_report::{assert_locks_become_free_at, report_run},
        faults::FaultWindow,
        mutual_exclusion_oracle::Oracle,
    },
    redis::server::RestartData,
    redlock::deployment::{QUARANTINE, RedlockDeployment},
    scale::{print_figures, scaled_count},
};
use tokio::time::sleep;

const BROKERS: usize = 3;
const CLIENTS: usize = 12;
/// Number of locks. Several clients use each lock in turn, and some locks are free at any time.
const LOCKS: usize = 40;
const QUIET_PERIOD: Duration = Duration::from_secs(2);
const STOPPED: Duration = Duration::from_secs(2);
/// Maximum time from the end of its quarantine until a server votes again.
const VOTES: Duration = Duration::from_millis(700);
const BLIND_CHECK: Duration = Duration::from_secs(1);

/// Fault of two servers at a time.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// Both servers are paused, longer than a broker keeps a connection without replies.
    Stopped,
    /// One server is killed and restarted with its data, while another one is paused.
    Killed,
    /// One server is killed and restarted without its data, while another one is paused.
    Emptied,
}

async fn inject(fault: Fault, at: usize, servers: &mut RedlockDeployment) -> FaultWindow {
    let (one, other) = (at % 5, (at + 1) % 5);
    let from = boottime();
    servers.pause([other]).await;
    match fault {
        Fault::Stopped => {
            servers.pause([one]).await;
            sleep(STOPPED).await;
            servers.resume([one, other]);
        }
        Fault::Killed | Fault::Emptied => {
            servers.kill(one).await;
            sleep(STOPPED).await;
            servers.resume([other]);
            let data = match fault {
                Fault::Emptied => RestartData::Deleted,
                Fault::Killed | Fault::Stopped => RestartData::Kept,
            };
            servers.restart(one, data).await;
            // A server without a vote counts as lost, and the next fault affects two servers.
            sleep(QUARANTINE + VOTES).await;
        }
    }
    FaultWindow {
        effect: format!("{fault:?} of servers {one} and {other}"),
        is_store_available: true,
        fault: None,
        started_at: from,
        ended_at: boottime(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_holders_overlap_on_independent_servers_under_faults() {
    let mut servers = RedlockDeployment::start(5).await;
    let brokers = servers.start_brokers(BROKERS).await;
    let endpoints: Vec<_> = brokers.iter().map(BrokerProcess::addr).collect();
    let oracle = Arc::new(Oracle::new(LOCKS));
    let started_at = boottime();
    let options = LoadOptions::plain(CLIENTS, |_| LockKind::Exclusive);
    let load = Load::start(options, &endpoints, &oracle);
    let mut windows = Vec::new();
    let faults = [Fault::Stopped, Fault::Emptied, Fault::Killed];
    for (at, fault) in (0..)
        .zip(faults.into_iter().cycle())
        .take(scaled_count(15, 2))
    {
        sleep(QUIET_PERIOD).await;
        windows.push(inject(fault, at, &mut servers).await);
    }
    sleep(QUIET_PERIOD).await;
    let ended = boottime();
    let calls = load.stop().await.calls;
    let mut took: Vec<_> = calls
        .iter()
        .map(|call| call.ended_at - call.started_at)
        .collect();
    took.sort_unstable();
    let part = |hundredths: usize| took[(took.len() - 1) * hundredths / 100];
    print_figures(&format!(
        "redlock_faults: calls took p50={:?} p90={:?} p99={:?}",
        part(50),
        part(90),
        part(99)
    ));
    let setting = format!("redlock_faults: clients={CLIENTS} brokers={BROKERS} locks={LOCKS}");
    let verdict = oracle.verdict();
    report_run(&setting, &verdict, &windows, &calls, (started_at, ended));
    assert_locks_become_free_at(&endpoints, LOCKS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oracle_detects_overlaps_without_locks() {
    let oracle = Arc::new(Oracle::new(LOCKS));
    run_without_locks(CLIENTS, &oracle, |_| LockKind::Exclusive, BLIND_CHECK).await;
    let verdict = oracle.verdict();
    print_figures(&format!(
        "redlock_faults without locks: visits={} overlaps={}",
        verdict.uses, verdict.overlaps
    ));
    assert!(verdict.overlaps > 0, "the referee must not be blind");
}
