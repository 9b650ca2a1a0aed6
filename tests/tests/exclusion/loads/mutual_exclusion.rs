//! Mutual exclusion with many clients, several brokers, one Redis and every fault in turn: no
//! client is ever in a lock together with a client that it excludes.

use std::sync::Arc;
use std::time::Duration;

use leasehold_tests::broker::deployment::Deployment;
use leasehold_tests::broker::process::BrokerProcess;
use leasehold_tests::clock::boottime;
use leasehold_tests::load::callers::{
    CallMix, KindOfLock, Load, LoadOptions, LockKind, run_without_locks,
};
use leasehold_tests::load::fault_report::{
    assert_every_key_expires, assert_locks_become_free, report_run,
};
use leasehold_tests::load::faults::{FaultInjector, FaultWindow};
use leasehold_tests::load::mutual_exclusion_oracle::Oracle;
use leasehold_tests::net::http2_proxy::Http2Proxy;
use leasehold_tests::scale::{print_figures, scaled_duration};

const CLIENTS: usize = 64;
const BROKERS: usize = 3;
const LOCKS: usize = 32;
const FULL: Duration = Duration::from_secs(60);
/// Duration below that of one rotation of all faults.
const ROTATION: Duration = Duration::from_secs(13);
const BLIND_CHECK: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn no_holders_overlap_under_faults() {
    run_kind("mutual_exclusion", |_| LockKind::Exclusive).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_limit_is_passed_under_faults() {
    run_kind("shared_and_permits", every_kind).await;
}

fn every_kind(lock: usize) -> LockKind {
    [LockKind::ReadWrite, LockKind::Semaphore][lock % 2]
}

async fn run_kind(name: &str, kind_of: KindOfLock) {
    let mut deployment = Deployment::start(BROKERS).await;
    let proxies = Http2Proxy::start_many(deployment.brokers.iter().map(BrokerProcess::addr)).await;
    let endpoints: Vec<_> = proxies.iter().map(Http2Proxy::addr).collect();
    let oracle = Arc::new(Oracle::new(LOCKS));
    let started_at = boottime();
    let options = LoadOptions::plain(CLIENTS, kind_of).with_mix(CallMix::Full);
    let load = Load::start(options, &endpoints, &oracle);
    let until = started_at + scaled_duration(FULL, ROTATION);
    let mut windows = Vec::new();
    for victim in (0..BROKERS).cycle() {
        let mut faults = FaultInjector {
            deployment: &mut deployment,
            proxies: &proxies,
            load: &load,
        };
        windows.extend(faults.inject_each(victim).await);
        if boottime() >= until {
            break;
        }
    }
    let ended = boottime();
    let record = load.stop().await;
    let setting = format!("{name}: clients={CLIENTS} brokers={BROKERS} locks={LOCKS}");
    report_run(
        &setting,
        &oracle.verdict(),
        &windows,
        &record.calls,
        (started_at, ended),
    );
    record.assert_losses_have_causes(name, &[]);
    let judged: Vec<_> = windows.iter().filter_map(FaultWindow::judged).collect();
    record.assert_history(name, &judged);
    record.assert_all_activities();
    assert_locks_become_free(&deployment, LOCKS).await;
    assert_every_key_expires(&deployment).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oracle_detects_overlaps_without_locks() {
    let kinds: [(&str, KindOfLock); 2] = [
        ("mutual_exclusion", |_| LockKind::Exclusive),
        ("shared_and_permits", every_kind),
    ];
    for (name, kind_of) in kinds {
        let oracle = Arc::new(Oracle::new(LOCKS));
        run_without_locks(CLIENTS, &oracle, kind_of, BLIND_CHECK).await;
        let verdict = oracle.verdict();
        print_figures(&format!(
            "{name} without locks: visits={} overlaps={}",
            verdict.uses, verdict.overlaps
        ));
        assert!(verdict.overlaps > 0, "the referee must not be blind");
    }
}
