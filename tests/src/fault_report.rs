//! What a run under faults must have shown: safety, enough work, and nothing left behind.

use std::net::SocketAddr;
use std::time::Duration;

use crate::broker_process::KEY_PREFIX;
use crate::client::Client;
use crate::clock::boottime;
use crate::deployment::Deployment;
use crate::faults::Window;
use crate::load::{CallRecord, lock_name};
use crate::scale::figures;
use crate::witness::Verdict;

const DRAIN_LIMIT: Duration = Duration::from_secs(20);

/// Prints the figures of a run from its beginning to its end, and judges them.
pub fn report(
    setting: &str,
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
        "{setting} seconds={} granted={granted} failed={failed} calm_grants_per_s={per_second} faults={} \
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

/// Every lock of the load is free again in the end.
pub async fn locks_are_free(deployment: &Deployment, locks: usize) {
    locks_are_free_at(&deployment.addrs(), locks).await;
}

/// The same at these brokers.
pub async fn locks_are_free_at(brokers: &[SocketAddr], locks: usize) {
    let client = Client::new("observer", brokers, 0);
    let give_up = boottime() + DRAIN_LIMIT;
    for lock in (0..locks).map(lock_name) {
        while let Some(state) = client.get_lock(&lock).await.expect("GetLock works") {
            assert!(boottime() < give_up, "still held or waited for: {state:?}");
        }
    }
}

/// Redis drops by itself whatever is left.
pub async fn every_key_ends(deployment: &Deployment) {
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
