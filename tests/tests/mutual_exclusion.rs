//! Many clients, several brokers, one Redis and every fault in turn: nobody is ever in a lock
//! together with somebody whom it excludes.

use std::sync::Arc;
use std::time::Duration;

use leasehold_tests::broker_process::{BrokerProcess, KEY_PREFIX};
use leasehold_tests::client::Client;
use leasehold_tests::clock::boottime;
use leasehold_tests::deployment::Deployment;
use leasehold_tests::faults::{Faults, Window};
use leasehold_tests::load::{CallRecord, Kind, KindOf, Load, lock_name, run_without_locks};
use leasehold_tests::proxy::Proxy;
use leasehold_tests::scale::{duration, figures};
use leasehold_tests::witness::{Verdict, Witness};

const CLIENTS: usize = 64;
const BROKERS: usize = 3;
const LOCKS: usize = 10;
const FULL: Duration = Duration::from_secs(60);
/// Less than all faults in turn take.
const ROTATION: Duration = Duration::from_secs(13);
const BLIND_CHECK: Duration = Duration::from_secs(1);
const DRAIN_LIMIT: Duration = Duration::from_secs(20);

/// A run on its own keeps two cores busy.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

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
    let _alone = ONE_AT_A_TIME.lock().await;
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
    report(name, &witness.verdict(), &windows, &calls, (begun, ended));
    locks_are_free(&deployment).await;
    every_key_ends(&deployment).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_referee_sees_overlaps_without_locks() {
    let _alone = ONE_AT_A_TIME.lock().await;
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

fn report(
    name: &str,
    verdict: &Verdict,
    windows: &[Window],
    calls: &[CallRecord],
    (begun, ended): (Duration, Duration),
) {
    let in_fault = |call: &CallRecord| windows.iter().any(|window| window.contains(call.ended));
    let in_run = |call: &&CallRecord| call.granted && call.ended < ended;
    let granted = calls.iter().filter(in_run).count();
    let calm_grants = calls
        .iter()
        .filter(in_run)
        .filter(|call| !in_fault(call))
        .count();
    let fault_time: Duration = windows.iter().map(|window| window.to - window.from).sum();
    let calm_time = ended - begun - fault_time;
    let per_second =
        calm_grants / usize::try_from(calm_time.as_secs().max(1)).unwrap_or(usize::MAX);
    let working = windows.iter().filter(|window| window.store_works);
    let (done, not_done) = working
        .map(|window| window.granted_and_not(calls))
        .fold((0, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
    for window in windows {
        let (granted, not) = window.granted_and_not(calls);
        let millis = (window.to - window.from).as_millis();
        figures(&format!(
            "fault {} ({millis} ms, granted={granted} open={not})",
            window.effect
        ));
    }
    let failed = calls.iter().filter(|call| !call.granted).count();
    figures(&format!(
        "{name}: clients={CLIENTS} brokers={BROKERS} locks={LOCKS} seconds={} \
         granted={granted} failed={failed} calm_grants_per_s={per_second} faults={} \
         done_in_faults={done} not_done_in_faults={not_done} overlaps={} regressions={} \
         fence_violations={} caught={}",
        (ended - begun).as_secs(),
        windows.len(),
        verdict.overlaps,
        verdict.regressions,
        verdict.fence_violations,
        verdict.caught
    ));
    let wrong = (
        verdict.overlaps,
        verdict.regressions,
        verdict.fence_violations,
    );
    assert_eq!(wrong, (0, 0, 0), "overlaps, regressions, fence violations");
    assert!(
        per_second >= 100,
        "too little happened to prove anything: {per_second} grants/s"
    );
    assert!(
        done * 5 >= granted && done * 4 >= not_done,
        "less than a fifth of all calls, or of the calls open then, was done during faults"
    );
}

async fn locks_are_free(deployment: &Deployment) {
    let client = Client::new("observer", &deployment.addrs(), 0);
    let give_up = boottime() + DRAIN_LIMIT;
    for lock in (0..LOCKS).map(lock_name) {
        while let Some(state) = client.get_lock(&lock).await.expect("GetLock works") {
            assert!(boottime() < give_up, "still held or waited for: {state:?}");
        }
    }
}

async fn every_key_ends(deployment: &Deployment) {
    let mut redis = deployment.redis.connect().await;
    let permanent = ["era", "key"].map(|name| format!("{KEY_PREFIX}{name}"));
    let keys = redis.keys_with_pttl(KEY_PREFIX).await;
    let endless = keys
        .iter()
        .filter(|(key, pttl)| *pttl < 0 && !permanent.contains(key));
    let endless: Vec<_> = endless.collect();
    assert!(
        keys.len() > permanent.len(),
        "locks have left records: {keys:?}"
    );
    assert!(endless.is_empty(), "keys without a TTL: {endless:?}");
}
