//! Many clients, three brokers and five independent servers, of which at most two at a time are
//! killed, stopped, or back without a vote: nobody trusts a lock that somebody else has.

use std::{sync::Arc, time::Duration};

use leasehold_tests::{
    broker_process::BrokerProcess,
    clock::boottime,
    fault_report::{locks_are_free_at, report},
    faults::Window,
    load::{Kind, Load, run_without_locks},
    redis_server::Data,
    redlock::{QUARANTINE, RedlockDeployment},
    scale::{count, figures},
    witness::Witness,
};
use tokio::time::sleep;

const BROKERS: usize = 3;
const CLIENTS: usize = 12;
/// Several callers for each lock, and some locks that are free.
const LOCKS: usize = 40;
const CALM: Duration = Duration::from_secs(2);
const STOPPED: Duration = Duration::from_secs(2);
/// How long after its quarantine a server votes again at most.
const VOTES: Duration = Duration::from_millis(700);
const BLIND_CHECK: Duration = Duration::from_secs(1);

/// What happens to two servers at a time.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// Both are stopped, longer than a broker trusts a silent connection.
    Stopped,
    /// One is killed and comes back with its data; another one is stopped meanwhile.
    Killed,
    /// One comes back without its data; another one is stopped meanwhile.
    Emptied,
}

async fn make(fault: Fault, at: usize, servers: &mut RedlockDeployment) -> Window {
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
            servers.lose(one).await;
            sleep(STOPPED).await;
            servers.resume([other]);
            let data = match fault {
                Fault::Emptied => Data::Lost,
                Fault::Killed | Fault::Stopped => Data::Kept,
            };
            servers.restart(one, data).await;
            // Without a vote it counts as lost: the next fault takes two.
            sleep(QUARANTINE + VOTES).await;
        }
    }
    Window {
        effect: format!("{fault:?} of servers {one} and {other}"),
        store_works: true,
        from,
        to: boottime(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_overlaps_on_independent_servers_under_faults() {
    let mut servers = RedlockDeployment::start(5).await;
    let brokers = servers.brokers(BROKERS).await;
    let endpoints: Vec<_> = brokers.iter().map(BrokerProcess::addr).collect();
    let witness = Arc::new(Witness::new(LOCKS));
    let begun = boottime();
    let load = Load::start(CLIENTS, &endpoints, &witness, |_| Kind::Exclusive);
    let mut windows = Vec::new();
    let faults = [Fault::Stopped, Fault::Emptied, Fault::Killed];
    for (at, fault) in (0..).zip(faults.into_iter().cycle()).take(count(15, 2)) {
        sleep(CALM).await;
        windows.push(make(fault, at, &mut servers).await);
    }
    sleep(CALM).await;
    let ended = boottime();
    let calls = load.stop().await;
    let mut took: Vec<_> = calls.iter().map(|call| call.ended - call.begun).collect();
    took.sort_unstable();
    let part = |hundredths: usize| took[(took.len() - 1) * hundredths / 100];
    figures(&format!(
        "redlock_faults: calls took p50={:?} p90={:?} p99={:?}",
        part(50),
        part(90),
        part(99)
    ));
    let setting = format!("redlock_faults: clients={CLIENTS} brokers={BROKERS} locks={LOCKS}");
    let verdict = witness.verdict();
    report(&setting, &verdict, &windows, &calls, (begun, ended));
    locks_are_free_at(&endpoints, LOCKS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_referee_sees_overlaps_without_locks() {
    let witness = Arc::new(Witness::new(LOCKS));
    run_without_locks(CLIENTS, &witness, |_| Kind::Exclusive, BLIND_CHECK).await;
    let verdict = witness.verdict();
    figures(&format!(
        "redlock_faults without locks: visits={} overlaps={}",
        verdict.visits, verdict.overlaps
    ));
    assert!(verdict.overlaps > 0, "the referee must not be blind");
}
