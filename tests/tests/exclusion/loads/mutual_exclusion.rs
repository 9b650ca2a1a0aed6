//! Many clients, several brokers, one Redis and every fault in turn: nobody is ever in a lock
//! together with somebody whom it excludes.

use std::sync::Arc;
use std::time::Duration;

use leasehold_tests::broker_process::BrokerProcess;
use leasehold_tests::clock::boottime;
use leasehold_tests::deployment::Deployment;
use leasehold_tests::fault_report::{every_key_ends, locks_are_free, report};
use leasehold_tests::faults::Faults;
use leasehold_tests::load::{Kind, KindOf, Load, run_without_locks};
use leasehold_tests::proxy::Proxy;
use leasehold_tests::scale::{duration, figures};
use leasehold_tests::witness::Witness;

const CLIENTS: usize = 64;
const BROKERS: usize = 3;
const LOCKS: usize = 10;
const FULL: Duration = Duration::from_secs(60);
/// Less than all faults in turn take.
const ROTATION: Duration = Duration::from_secs(13);
const BLIND_CHECK: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn nobody_overlaps_under_faults() {
    survive("mutual_exclusion", |_| Kind::Exclusive).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_limit_is_passed_under_faults() {
    survive("shared_and_permits", every_kind).await;
}

fn every_kind(lock: usize) -> Kind {
    [Kind::ReadWrite, Kind::Semaphore][lock % 2]
}

async fn survive(name: &str, kind_of: KindOf) {
    let mut deployment = Deployment::start(BROKERS).await;
    let proxies = Proxy::start_many(deployment.brokers.iter().map(BrokerProcess::addr)).await;
    let endpoints: Vec<_> = proxies.iter().map(Proxy::addr).collect();
    let witness = Arc::new(Witness::new(LOCKS));
    let begun = boottime();
    let load = Load::start(CLIENTS, &endpoints, &witness, kind_of);
    let until = begun + duration(FULL, ROTATION);
    let mut windows = Vec::new();
    for victim in (0..BROKERS).cycle() {
        let mut faults = Faults {
            deployment: &mut deployment,
            proxies: &proxies,
            load: &load,
        };
        windows.extend(faults.rotate(victim).await);
        if boottime() >= until {
            break;
        }
    }
    let ended = boottime();
    let calls = load.stop().await;
    let setting = format!("{name}: clients={CLIENTS} brokers={BROKERS} locks={LOCKS}");
    report(
        &setting,
        &witness.verdict(),
        &windows,
        &calls,
        (begun, ended),
    );
    locks_are_free(&deployment, LOCKS).await;
    every_key_ends(&deployment).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_referee_sees_overlaps_without_locks() {
    let kinds: [(&str, KindOf); 2] = [
        ("mutual_exclusion", |_| Kind::Exclusive),
        ("shared_and_permits", every_kind),
    ];
    for (name, kind_of) in kinds {
        let witness = Arc::new(Witness::new(LOCKS));
        run_without_locks(CLIENTS, &witness, kind_of, BLIND_CHECK).await;
        let verdict = witness.verdict();
        figures(&format!(
            "{name} without locks: visits={} overlaps={}",
            verdict.visits, verdict.overlaps
        ));
        assert!(verdict.overlaps > 0, "the referee must not be blind");
    }
}
